"""Windows of long contexts: the tokenizer's own, cut faster, with exact places in the text."""

import pytest
from tokenizers.processors import TemplateProcessing

from hf_bert_impl.data.windows import cut_windows, max_context_windows
from tests.support.checkpoints import tokenizer_of

WORDS = "who what ? . , the a cat sat on mat anna ##s na ##ive cafe e ##t ##e ete 我 爱 北 京 ##́ o"
TOKENIZER, OTHER = tokenizer_of(WORDS.split()), tokenizer_of(WORDS.split())
# Another frame and other token types than BERT's.
OTHER.backend_tokenizer.post_processor = TemplateProcessing(
    single="[CLS]:0 $A:0 [SEP]:0",
    pair="[CLS]:0 $A:0 [SEP]:0 [SEP]:0 $B:0 [SEP]:0",
    special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
)


def one(question, context, *, tokenizer=TOKENIZER, **options):
    [windows] = cut_windows(tokenizer, [(question, context)], **options)
    return windows


# --- the same windows as the tokenizer's -----------------------------------------------------


@pytest.mark.parametrize("tokenizer", [TOKENIZER, OTHER])
@pytest.mark.parametrize("words", [1, 3, 10, 11, 12, 13, 14, 21, 40])
@pytest.mark.parametrize(("length", "stride"), [(17, 0), (17, 1), (18, 10), (18, 5), (30, 12)])
def test_equal_to_the_tokenizers_own(tokenizer, words, length, stride):
    context = " ".join(["the cat sat on a mat , anna ."[: 3 + 2 * n] for n in range(words)])
    options = {"truncation": "only_second", "max_length": length, "stride": stride}
    options |= {"return_overflowing_tokens": True, "return_offsets_mapping": True}
    expected = tokenizer("who sat ?", context, **options)
    limits = {"max_seq_len": length, "doc_stride": stride}
    found = one("who sat ?", context, tokenizer=tokenizer, **limits)
    assert [window.input_ids for window in found] == expected["input_ids"]
    if tokenizer is OTHER:  # the library keeps types of BERT's frame in all windows but the first
        expected["token_type_ids"] = [[0] * len(ids) for ids in expected["input_ids"]]
    assert [window.token_type_ids for window in found] == expected["token_type_ids"]
    assert [len(window) for window in found] == [len(ids) for ids in expected["input_ids"]]
    for number, window in enumerate(found):
        inside = [n for n, part in enumerate(expected.sequence_ids(number)) if part == 1]
        assert inside[0] == window.offset
        places = [expected["offset_mapping"][number][n] for n in inside]
        part = slice(window.first, window.stop)
        assert [*zip(window.context.starts[part], window.context.ends[part], strict=True)] == places


def test_defaults():
    context = "the cat sat . " * 300  # 1200 tokens
    windows = one("who sat ?", context)
    room = 384 - 6
    assert [window.first for window in windows] == [0, 250, 500, 750, 1000]
    assert [window.stop for window in windows] == [room, room + 250, room + 500, room + 750, 1200]
    # The window around a token: a hundredth of its length counts, so 378 tokens against 200 do.
    owner = max_context_windows(windows)
    assert [*owner[[313, 314, 1064, 1065]]] == [0, 1, 3, 4]
    # In a small window half of the context tokens overlap: 128 would not fit.
    small = one("who sat ?", context, max_seq_len=31)
    assert [window.first for window in small[:3]] == [0, 25 - 12, 2 * (25 - 12)]


# --- places ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "pieces", "words"),
    [
        ("Café naïve", ["Café", "na", "ïve"], ["Café", "naïve", "naïve"]),
        ("Cafe\u0301 e\u0301te\u0301, o", None, ["Cafe\u0301", "e\u0301te\u0301", ",", "o"]),
        ("我爱 北京。", ["我", "爱", "北", "京", "。"], ["我", "爱", "北", "京", "。"]),
        ("cat 👍🏽 cats 👩‍🚀.", ["cat", "👍🏽", "cat", "s", "👩‍🚀", "."], None),
        ("o\u0301\u0302 o", ["o\u0301\u0302", "o"], ["o\u0301\u0302", "o"]),
        ("cat\u0301", ["cat\u0301"], ["cat\u0301"]),
        ("\u0301 cat", ["cat"], ["cat"]),
    ],
)
def test_places_in_the_text(text, pieces, words):
    context = one("who", text)[0].context
    if pieces is not None:
        found = zip(context.starts, context.ends, strict=True)
        assert [text[start:end] for start, end in found] == pieces
    if words is not None:
        found = zip(context.word_starts, context.word_ends, strict=True)
        assert [text[start:end] for start, end in found] == words
