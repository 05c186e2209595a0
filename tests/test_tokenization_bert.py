"""The tokenizer: the ids of transformers' own, and what files are read and written."""

import itertools
import random
from pathlib import Path

import pytest
import transformers
from tokenizers import Tokenizer, models
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from hf_bert_impl.tokenization_bert import BertTokenizer, load_vocab
from tests.support.damage import write

HARD_TEXTS = [
    "Hello, World! It's 3.14% of $5 -- isn't it? e-mail@x.org [brackets] {a}<b>",
    "cafe\u0301 café na\u0131\u0308ve A\u030a \u0344 q\u0307\u0323",
    "İstanbul ISTANBUL ıi Straße ẞ ΟΔΟΣ ὈΔΥΣΣΕΎΣ ς ﬁne Ǆ ǅ K Å",
    "nul\x00 bell\x07 esc\x1b unit\x1f del\x7f next\x85line form\x0cfeed vert\x0btab \ufffd",
    "tab\tnew\nline\r\nreturn \xa0nbsp\u2003em\u3000wide\u2028sep\u2029para \u180e",
    "我爱北京天安门。Python是一门语言",
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
CONFIG = "tokenizer_config.json"
SMALL = {word: number for number, word in enumerate(WORDS)}


@pytest.fixture
def vocab_folder(tmp_path) -> Path:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return tmp_path


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
def test_tokenized_like_upstream(vocab_file, switches):
    """Hard texts, and random ones of known pieces, any characters and spaces."""
    vocab = load_vocab(vocab_file)
    ours, upstream = BertTokenizer(vocab, **switches), stock(vocab, **switches)
    rng = random.Random(1810_04805)
    chars = [chr(code) for code in range(0x30000) if not 0xD800 <= code < 0xE000]
    known = [token.removeprefix("##") for token in vocab if not token.startswith("[")]
    unknown = ["".join(rng.choices(chars, k=3)) for _ in known]
    parts = [*known, *unknown, *(" " * len(known))]
    texts = ["".join(rng.choices(parts, k=rng.randint(1, 24))) for _ in range(200)]
    for text in (*HARD_TEXTS, *texts):
        assert outputs(ours, text) == outputs(upstream, text), ascii(text)


# never_split and do_basic_tokenize


def test_as_the_tokenizer_of_transformers_4(vocab_folder):
    file = str(vocab_folder / "vocab.txt")
    old = BertTokenizerLegacy(file, do_basic_tokenize=False)
    new = BertTokenizer(SMALL, do_basic_tokenize=False)
    text = "The the\tAPPLE mat, cat. unknowns\n un\x00 \xa0on"
    assert new.tokenize(text) == old.tokenize(text)
    assert new.tokenize("The mat, cat.") == ["The", "mat,", "[UNK]"]
    old = BertTokenizerLegacy(file, never_split=["Apple", "[EMAIL]"])
    # A word that the vocabulary lacks is named, with the remedy.
    with pytest.warns(UserWarning, match=r"\['Banana', 'Kiwi'\].*add_tokens"):
        new = BertTokenizer(SMALL, never_split=["Apple", "[EMAIL]", "Banana", "Kiwi"])
    text = "The Apple sat on Apples and [EMAIL] apple APPLE"
    assert new.tokenize(text) == old.tokenize(text)
    assert new.tokenize("on [EMAIL], Apple.") == ["on", "[EMAIL]", ",", "Apple", "."]
    assert new.decode([SMALL["Apple"]], skip_special_tokens=True) == "Apple"


# Files


def test_a_folder_with_vocab_txt_with_and_without_config(vocab_folder):
    for tokenizer in (
        BertTokenizer.from_pretrained(vocab_folder),
        BertTokenizer(vocab_file=str(vocab_folder / "vocab.txt")),
        BertTokenizer(vocab_folder / "vocab.txt"),
    ):
        assert tokenizer.tokenize("The Cat") == ["the", "cat"]
    fields = {"do_lower_case": False, "never_split": ["Apple"], "model_max_length": 77}
    write(CONFIG, fields | {"tokenizer_class": "BertTokenizer"})(vocab_folder)
    tokenizer = BertTokenizer.from_pretrained(vocab_folder)
    assert tokenizer.tokenize("The cat") == ["The", "cat"]
    assert tokenizer.model_max_length == 77 and tokenizer.never_split == ["Apple"]
    # Arguments come first.
    lowered = BertTokenizer.from_pretrained(vocab_folder, do_lower_case=True)
    assert lowered.tokenize("The cat") == ["the", "cat"]


READERS = {
    "ours": BertTokenizer,
    "stock": transformers.BertTokenizer,
    "auto": transformers.AutoTokenizer,
}
SAVED = [
    *itertools.product(("ours", "stock"), READERS, SWITCHES),
    *(("ours", reader, {"never_split": ["Apple"]}) for reader in READERS),
    *(("ours", reader, {"do_basic_tokenize": False}) for reader in ("ours", "auto")),
]


@pytest.mark.parametrize(("writer", "reader", "switches"), SAVED, ids=str)
def test_what_one_saves_the_others_read(tmp_path, writer, reader, switches):
    write("config.json", {"model_type": "bert"})(tmp_path)  # by which AutoTokenizer knows it
    wide = [*WORDS, "é", "É", "e", "##́", "中", "文", "中文"]
    vocab = {word: number for number, word in enumerate(wide)}
    more = {"model_max_length": 99, "padding_side": "left"}
    written = READERS[writer](vocab, **{"do_lower_case": True, **switches}, **more)
    written.add_tokens(["newword"])
    written.save_pretrained(tmp_path)
    read = READERS[reader].from_pretrained(tmp_path)
    text = "The Apple apple, mat, unknowns É é 中文 newword [MASK]"
    assert outputs(read, text, "pie") == outputs(written, text, "pie")
    assert {name: getattr(read, name) for name in more} == more
    assert read.get_vocab() == written.get_vocab()
    if reader == "ours":  # upstream lower-cases whatever tokenizer.json says
        (tmp_path / "tokenizer_config.json").unlink()
        if (tmp_path / "vocab.txt").exists():
            assert load_vocab(tmp_path / "vocab.txt") == vocab
            (tmp_path / "vocab.txt").unlink()
        alone = BertTokenizer.from_pretrained(tmp_path)
        assert outputs(alone, text, "pie") == outputs(written, text, "pie")
        assert alone.do_lower_case is switches.get("do_lower_case", True)


def test_line_ends_byte_order_mark_and_spaces_in_vocab_txt(tmp_path):
    """With a token listed twice, the ids are the line numbers."""
    words = ["[PAD]", "[UNK] ", "[CLS]", "[SEP]", "[MASK]\t", "\u3000", "\u2028", "a", "a", "b"]
    (tmp_path / "vocab.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(words).encode())
    tokenizer = BertTokenizer.from_pretrained(tmp_path)
    expected = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u3000", "\u2028", "a", "b"]
    assert tokenizer.convert_tokens_to_ids(expected) == [0, 1, 2, 3, 4, 5, 6, 8, 9]


# Bad input


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("vocab.txt", b"", "is empty.*one token a line"),
        ("vocab.txt", b"\n\n", "is empty"),
        ("vocab.txt", b"[PAD]\n\xff\xfe\n", r"vocab\.txt.*not UTF-8"),
        ("vocab.txt", b"[PAD]\n[CLS]\n[SEP]\n[MASK]\n", r"\[UNK\].*unk_token="),
        ("vocab.txt", b"[PAD]\n[UNK]\n[SEP]\n[MASK]\n", r"\[CLS\].*cls_token="),
        ("vocab.txt", b"[PAD]\n[UNK]\n[CLS]\n[MASK]\n", r"\[SEP\].*sep_token="),
        ("tokenizer.json", Tokenizer(models.BPE({"a": 0}, [])).to_str(), r"BPE.*WordPiece"),
        (CONFIG, {"model_max_length": -1}, r"model_max_length=-1 is not valid. Use .* 1 or more"),
        ("model.safetensors", b"", r"no tokenizer.*tokenizer\.json"),
    ],
)
def test_bad_files(tmp_path, name, content, words):
    write(name, content)(tmp_path)
    if name == CONFIG:
        BertTokenizer(SMALL).save_vocabulary(str(tmp_path))
    with pytest.raises((ValueError, FileNotFoundError), match=words) as caught:
        BertTokenizer.from_pretrained(tmp_path)
    assert "\n" not in str(caught.value)


def test_no_vocabulary(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no\.txt.*vocab\.txt"):
        BertTokenizer(vocab_file=str(tmp_path / "no.txt"))


def test_vocabulary_without_padding_and_mask_warns_of_new_ids():
    words = {word: n for n, word in enumerate(["[UNK]", "[CLS]", "[SEP]", "cat"])}
    with pytest.warns(UserWarning, match=r"\['\[PAD\]', '\[MASK\]'\]"):
        assert len(BertTokenizer(words)) == 6
