"""The words of the lessons: the pieces of the `tokenizers` library, and fastText's vectors."""

import random
import unicodedata

import numpy as np
import pytest
from tokenizers import models

from hf_bert_impl import BertTokenizer
from lessons.fasttext import FastTextVectors, ngrams
from lessons.wordpiece import UNKNOWN_TO_LIBRARY, split_into_pieces, tokenize
from tests.support.checkpoints import SPECIAL_TOKENS

NAMES = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
MODES = [(True, None, True), (False, None, True), (False, True, False), (True, False, False)]
#: Every character of this Python's Unicode that the library knows, some private-use ones, and some
#: unassigned. Runs of marks of the newest scripts are the difference that the module names.
CHARS = [
    char
    for char in map(chr, range(0x110000))
    if unicodedata.category(char) not in ("Cn", "Cs", "Co") and ord(char) not in UNKNOWN_TO_LIBRARY
] + ["\ue000", "\U000f0000", "\U0010fffd", "\u0378", "\U0001fbff", "\uffff"]


@pytest.mark.parametrize("mode", MODES)
def test_random_text_has_the_librarys_pieces(mode):
    options = dict(zip(NAMES, mode, strict=True))
    tokens = [*SPECIAL_TOKENS, *CHARS, *(f"##{char}" for char in CHARS)]
    vocab = {token: number for number, token in enumerate(tokens)}
    library = BertTokenizer(vocab, **options)
    marks = [char for char in CHARS if unicodedata.category(char)[0] == "M"]
    near = [char for char in CHARS if ord(char) < 0x600]
    rng = random.Random(20181011)
    for _ in range(2000):
        pool = rng.choice([CHARS, near, [*marks, *"aeiouxyz "]])
        text = "".join(rng.choices(pool, k=rng.randint(1, 20)))
        assert tokenize(text, vocab, **options) == library.tokenize(text), ascii(text)


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


def test_contexts_and_ngrams_make_words_similar():
    """Also a word that is not in the texts."""
    assert ngrams("where", 3, 3) == [
        "<where>",
        "<wh",
        "whe",
        "her",
        "ere",
        "re>",
    ]  # as in the paper
    animals, stones = ("cat", "dog", "hen", "cow"), ("granite", "basalt", "marble", "slate")
    texts = [f"the {word} eats in a field" for word in animals] * 9
    texts += [f"old walls of {word} stand here" for word in stones] * 9
    sentences = [text.split() for text in texts]
    made = FastTextVectors(sentences, size=24)
    first = made.learn(sentences, epochs=1, batch_size=64)
    assert made.learn(sentences, epochs=20, batch_size=64) < 0.7 * first
    # Without the mean that all vectors share.
    vectors = made.encode([*animals, *stones, "granites"])
    vectors -= vectors[:8].mean(axis=0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert (vectors[0] @ vectors[1:4].T > vectors[4] @ vectors[1:4].T + 0.1).all()
    assert "granites" not in made.words
    assert vectors[8] @ vectors[4] > vectors[8] @ vectors[0] + 0.3
