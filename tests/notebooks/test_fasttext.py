"""notebooks/lessons/fasttext.py: the n-grams of a word, and vectors of words in shared contexts."""

import numpy as np

from lessons.fasttext import FastTextVectors, ngrams


def test_ngrams_are_those_of_the_paper():
    """The example of section 3.2, with n = 3."""
    assert ngrams("where", 3, 3) == ["<where>", "<wh", "whe", "her", "ere", "re>"]


def test_contexts_and_ngrams_make_words_similar():
    """Also a word that is not in the texts."""
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
