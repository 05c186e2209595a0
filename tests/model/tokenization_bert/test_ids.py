"""The tokenizer gives the ids of transformers' own."""

import random
import unicodedata
from pathlib import Path

import pytest
import transformers
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from hf_bert_impl.model.tokenization_bert import BertTokenizer, BertTokenizerFast, load_vocab

HARD_TEXTS = [
    "Hello, World! It's 3.14% of $5 -- isn't it? e-mail@x.org [brackets] {a}<b>",
    "flag \U0001f1e9\U0001f1ea skin \U0001f44d\U0001f3fd",
    "cafe\u0301 café na\u0131\u0308ve A\u030a \u0344 q\u0307\u0323",
    "İstanbul ISTANBUL ıi Straße ẞ ΟΔΟΣ ὈΔΥΣΣΕΎΣ ς ﬁne Ǆ ǅ K Å",
    "nul\x00 bell\x07 esc\x1b unit\x1f del\x7f next\x85line form\x0cfeed vert\x0btab \ufffd",
    "tab\tnew\nline\r\nreturn \xa0nbsp\u2003em\u3000wide\u2028sep\u2029para \u180e",
    "我爱北京天安门。Python是一门语言",
    "㐀 \U00020000 \U0002a700 \U0002b740 \U0002b820 \U0002b920 豈 \U0002f800",
    "한국어 조선말 ㅎㅏㄴ ひらがな カタカナ ｶﾀｶﾅ ー 々",
    "العربية مُحَمَّد עִבְרִית ไทยภาษา हिन्दी தமிழ் བོད་ ქართული ԲԱՐԵՎ",
    "x" * 100 + " " + "x" * 101 + " " + "é" * 101 + " " + "각" * 60,
    "...!!!???---___$$$+++~~~```|||^^^===<<<>>>",
    "[unused1] ##ing ## # [UN K] [MASK",
    "",
    " \t\n ",
]


@pytest.fixture(scope="session", params=["english", "chinese"])
def vocab_file(request) -> str:
    if request.param == "english":
        return str(request.getfixturevalue("minilm_path") / "vocab.txt")
    return str(request.getfixturevalue("data_dir") / "bert_base_chinese_vocab.txt")


# Entries after the special ones: with a capital, with punctuation inside, of punctuation alone.
WORDS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", "apple"),
    *("Apple", "pie", "un", "##known", "##s", ",", ".", "[EMAIL]", "mat,", "The"),
]
SMALL = {word: number for number, word in enumerate(WORDS)}


def write_vocab(folder: Path, words: list[str] | None = None) -> Path:
    (folder / "vocab.txt").write_text("\n".join(words or WORDS) + "\n", encoding="utf-8")
    return folder


def stock(vocab, **switches) -> transformers.BertTokenizer:
    # The default was False in transformers 5.0, and is True before and after.
    return transformers.BertTokenizer(vocab, **{"do_lower_case": True, **switches})


def outputs(tokenizer, *args, **kwargs) -> dict:
    # `return_token_type_ids` and the like are on by default, and are compared as well.
    return dict(
        tokenizer(*args, **kwargs, return_offsets_mapping=True, return_special_tokens_mask=True)
    )


# The same ids as upstream


SWITCHES = [
    {},
    {"do_lower_case": False},
    {"do_lower_case": False, "strip_accents": True},
    {"strip_accents": False},
    {"tokenize_chinese_chars": False},
]


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_hard_text_is_tokenized_like_upstream(vocab_file, switches):
    vocab = load_vocab(vocab_file)
    ours = BertTokenizer(vocab, **switches)
    upstream = stock(vocab, **switches)
    for text in HARD_TEXTS:
        assert outputs(ours, text) == outputs(upstream, text), ascii(text)


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_random_text_is_tokenized_like_upstream(vocab_file, do_lower_case):
    vocab = load_vocab(vocab_file)
    ours = BertTokenizer(vocab, do_lower_case=do_lower_case)
    upstream = stock(vocab, do_lower_case=do_lower_case)
    rng = random.Random(1810_04805)
    chars = [
        chr(code) for code in range(0x30000) if unicodedata.category(chr(code)) not in ("Cn", "Cs")
    ]
    known = [token.removeprefix("##") for token in vocab if not token.startswith("[")]
    for _ in range(300):
        parts = [
            rng.choice(known)
            if rng.random() < 0.5
            else "".join(rng.choices(chars, k=rng.randint(1, 5)))
            for _ in range(rng.randint(1, 12))
        ]
        text = "".join(part + rng.choice(["", "", " "]) for part in parts)
        assert outputs(ours, text) == outputs(upstream, text), ascii(text)


OVERFLOW = {"return_overflowing_tokens": True}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"padding": True},
        {"padding": "max_length", "max_length": 23},
        {"truncation": "only_second", "max_length": 21},
        {"truncation": "only_first", "max_length": 21, "stride": 3, **OVERFLOW},
        {"add_special_tokens": False},
        {"return_token_type_ids": False, "return_length": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_pairs_padding_and_truncation_are_upstreams(minilm_path, options, side):
    vocab = str(minilm_path / "vocab.txt")
    first = ["The quick brown fox jumped over unbelievably lazy dogs.", "A cat, sat on the mat."]
    second = [
        "Which animals, exactly, were jumping over the others?",
        "Where did the black cat sit?",
    ]
    sides = {"padding_side": side, "truncation_side": side}
    ours, upstream = BertTokenizer(vocab, **sides), stock(vocab, **sides)
    got = outputs(ours, first, second, **options)
    expected = outputs(upstream, first, second, **options)
    assert got.keys() == expected.keys()
    for name in expected:
        assert list(map(str, got[name])) == list(map(str, expected[name])), name


def test_the_rest_is_upstreams(minilm_path):
    """Special tokens in a text, decoding, words that are split already, names and sizes."""
    ours = BertTokenizer.from_pretrained(minilm_path)
    upstream = transformers.BertTokenizer.from_pretrained(minilm_path)
    ids = ours("Paris is the [MASK] of France. [SEP] [unused1] unbelievably, don't!")["input_ids"]
    assert ids.count(ours.mask_token_id) == 1 and ids.count(ours.sep_token_id) == 2
    for skip in (True, False):
        for tidy in (True, False):
            options = {"skip_special_tokens": skip, "clean_up_tokenization_spaces": tidy}
            assert ours.decode(ids, **options) == upstream.decode(ids, **options)
    words = ["Hello", "unbelievably", ",", "中文", ""]
    split, there = (one(words, is_split_into_words=True) for one in (ours, upstream))
    assert split["input_ids"] == there["input_ids"]
    assert split.word_ids() == there.word_ids()
    assert ours.get_vocab() == upstream.get_vocab()
    for name in ("special_tokens_map", "all_special_ids", "vocab_size", "model_max_length"):
        assert getattr(ours, name) == getattr(upstream, name)
    assert BertTokenizerFast is BertTokenizer and ours.is_fast


# never_split and do_basic_tokenize


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Apple pie", ["Apple", "pie"]),
        ("apple APPLE", ["apple", "apple"]),  # another case is another word
        ("the Apple.", ["the", "Apple", "."]),
        ("Apples", ["apple", "##s"]),  # not inside a word
        ("on [EMAIL], mat", ["on", "[EMAIL]", ",", "mat"]),
        ("The the", ["the", "the"]),
    ],
)
def test_never_split_keeps_tokens_whole_and_their_case(text, tokens):
    tokenizer = BertTokenizer(SMALL, never_split=["Apple", "[EMAIL]"])
    assert tokenizer.tokenize(text) == tokens
    assert tokenizer.convert_tokens_to_ids(tokens) == [SMALL[token] for token in tokens]
    assert len(tokenizer) == len(SMALL)
    assert tokenizer.decode([SMALL["Apple"]], skip_special_tokens=True) == "Apple"
    masks = BertTokenizer(SMALL, never_split=["[MASK]"])
    assert masks.decode([SMALL["[MASK]"], SMALL["cat"]], skip_special_tokens=True) == "cat"


def test_never_split_names_what_the_vocabulary_lacks_and_the_remedy():
    with pytest.warns(UserWarning) as caught:
        tokenizer = BertTokenizer(SMALL, never_split=["Apple", "Banana", "Kiwi"])
    assert len(caught) == 1
    message = str(caught[0].message)
    assert "['Banana', 'Kiwi']" in message and "add_tokens" in message and "\n" not in message
    assert tokenizer.tokenize("Apple Banana") == ["Apple", "[UNK]"]
    assert len(tokenizer) == len(SMALL)


def test_as_the_tokenizer_of_transformers_4(tmp_path):
    write_vocab(tmp_path)
    old = BertTokenizerLegacy(str(tmp_path / "vocab.txt"), do_basic_tokenize=False)
    new = BertTokenizer(SMALL, do_basic_tokenize=False)
    text = "The the\tAPPLE mat, cat. unknowns\n un\x00 \xa0on"
    assert new.tokenize(text) == old.tokenize(text)
    assert new.tokenize("The mat, cat.") == ["The", "mat,", "[UNK]"]
    old = BertTokenizerLegacy(str(tmp_path / "vocab.txt"), never_split=["Apple", "[EMAIL]"])
    new = BertTokenizer(SMALL, never_split=["Apple", "[EMAIL]"])
    text = "The Apple sat on Apples and [EMAIL] apple"
    assert new.tokenize(text) == old.tokenize(text)
