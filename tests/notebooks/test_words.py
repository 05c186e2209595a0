"""The words of the lessons: the pieces of the `tokenizers` library, and fastText's vectors."""

import itertools
import random
import unicodedata

import numpy as np
import pytest

from hf_bert_impl import BertTokenizer
from lessons.fasttext import FastTextVectors, ngrams
from lessons.wordpiece import UNKNOWN_TO_LIBRARY, tokenize
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
    """Pieces of up to three letters, words that cannot be spelled, and long ones."""
    options = dict(zip(NAMES, mode, strict=True))
    longer = ["".join(letters) for letters in (*itertools.product("abcé", repeat=2), "abc", "bca")]
    inside = [f"##{piece}" for piece in (*CHARS, *longer) if piece not in ("z", "ab", "éa")]
    vocab = {token: n for n, token in enumerate((*SPECIAL_TOKENS, *CHARS, *longer, *inside))}
    library = BertTokenizer(vocab, **options)
    marks = [char for char in CHARS if unicodedata.category(char)[0] == "M"]
    near = [char for char in CHARS if ord(char) < 0x600]
    rng = random.Random(20181011)
    texts = ["é" * 100, "é" * 101]  # counted in characters, not in bytes
    for _ in range(2000):
        pool = rng.choice([CHARS, near, [*marks, *"aeiouxyz "], [*"abcéz "]])
        texts.append("".join(rng.choices(pool, k=rng.randint(1, 20))))
    for text in texts:
        assert tokenize(text, vocab, **options) == library.tokenize(text), ascii(text)


def test_contexts_and_ngrams_make_words_similar():
    """Also a word that is not in the texts."""
    papers = ["<where>", "<wh", "whe", "her", "ere", "re>"]
    assert ngrams("where", 3, 3) == papers
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
