"""notebooks/lessons/fasttext.py: the n-grams of a word, and vectors of words in shared contexts."""

import numpy as np
import pytest

from lessons.fasttext import FastTextVectors, ngrams

ANIMALS, STONES = ("cat", "dog", "hen", "cow"), ("granite", "basalt", "marble", "slate")


def test_ngrams_are_those_of_the_paper():
    """The example of section 3.2, with n = 3."""
    assert ngrams("where", 3, 3) == ["<where>", "<wh", "whe", "her", "ere", "re>"]


@pytest.fixture(scope="module")
def vectors():
    texts = [f"the {word} eats in a field" for word in ANIMALS] * 9
    texts += [f"old walls of {word} stand here" for word in STONES] * 9
    sentences = [text.split() for text in texts]
    made = FastTextVectors(sentences, size=24)
    first = made.learn(sentences, epochs=1, batch_size=64)
    assert made.learn(sentences, epochs=20, batch_size=64) < 0.7 * first
    return made


def similarity(vectors, one, other):
    """The cosine, without the mean that all vectors share."""
    a, b = vectors.encode([one, other]) - vectors.encode([*ANIMALS, *STONES]).mean(axis=0)
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_words_of_the_same_context_are_similar(vectors):
    for word in ANIMALS[1:]:
        assert similarity(vectors, "cat", word) > similarity(vectors, "granite", word) + 0.1


def test_an_unknown_word_is_similar_to_words_with_its_ngrams(vectors):
    assert "granites" not in vectors.words
    assert similarity(vectors, "granites", "granite") > similarity(vectors, "granites", "cat") + 0.3
