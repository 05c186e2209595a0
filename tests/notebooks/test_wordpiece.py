"""notebooks/lessons/wordpiece.py gives what the `tokenizers` library does, by character."""

import random
import unicodedata

import pytest
from tokenizers import models, normalizers, pre_tokenizers

from hf_bert_impl import BertTokenizer
from lessons.wordpiece import UNKNOWN_TO_LIBRARY, basic_tokenize, split_into_pieces, tokenize

# do_lower_case, strip_accents, tokenize_chinese_chars
MODES = [(True, None, True), (False, None, True), (False, True, False), (True, False, False)]


def library_words(text: str, mode: tuple[bool, bool | None, bool]) -> list[str]:
    normalizer = normalizers.BertNormalizer(
        clean_text=True, lowercase=mode[0], strip_accents=mode[1], handle_chinese_chars=mode[2]
    )
    words = pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normalizer.normalize_str(text))
    return [word for word, _ in words]


def reference_words(text: str, mode: tuple[bool, bool | None, bool]) -> list[str]:
    return basic_tokenize(
        text, do_lower_case=mode[0], strip_accents=mode[1], tokenize_chinese_chars=mode[2]
    )


def assigned() -> list[str]:
    """Every character of this Python's Unicode, and some private-use and unassigned ones."""
    found = [
        char
        for char in map(chr, range(0x110000))
        if unicodedata.category(char) not in ("Cn", "Cs", "Co")
    ]
    return [*found, "\ue000", "\U000f0000", "\U0010fffd", "\u0378", "\U0001fbff", "\uffff"]


@pytest.mark.parametrize("mode", MODES)
def test_random_text_gives_the_librarys_words(mode):
    # Runs of marks of the newest scripts are the difference that the module names.
    chars = [char for char in assigned() if ord(char) not in UNKNOWN_TO_LIBRARY]
    marks = [char for char in chars if unicodedata.category(char)[0] == "M"]
    near = [char for char in chars if ord(char) < 0x600]
    rng = random.Random(20181011)
    for _ in range(2000):
        pool = rng.choice([chars, near, [*marks, *"aeiouxyz "]])
        text = "".join(rng.choices(pool, k=rng.randint(1, 20)))
        assert reference_words(text, mode) == library_words(text, mode), ascii(text)


VOCAB = ("[UNK]", "a", "ab", "abc", "##c", "##cd", "##d", "##e", "x", "##x", "é", "##é", "##b")


@pytest.mark.parametrize(
    ("word", "pieces"),
    [
        ("ab", ["ab"]),
        ("abcd", ["abc", "##d"]),  # the longest piece first
        ("abcx", ["abc", "##x"]),
        ("acde", ["a", "##cd", "##e"]),
        ("abz", ["[UNK]"]),  # nothing of it is kept
        ("abcdz", ["[UNK]"]),
        ("é" * 100, ["é", *["##é"] * 99]),
        ("é" * 101, ["[UNK]"]),  # counted in characters, not in bytes
    ],
)
def test_pieces(word, pieces):
    vocab = {token: number for number, token in enumerate(VOCAB)}
    assert split_into_pieces(word, vocab) == pieces
    model = models.WordPiece(vocab, unk_token="[UNK]")
    assert [token.value for token in model.tokenize(word)] == pieces


def test_a_text_has_the_pieces_of_the_packages_tokenizer(data_dir):
    words = (data_dir / "bert_base_chinese_vocab.txt").read_text(encoding="utf-8").split("\n")
    vocab = {word: number for number, word in enumerate(words)}
    text = "Café, unbelievably naïve: 3.14% of 北京! e-mail@x.org한국어"
    for lower in (True, False):
        ours = BertTokenizer(vocab, do_lower_case=lower)
        assert ours.tokenize(text) == tokenize(text, vocab, do_lower_case=lower)
