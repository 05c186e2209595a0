"""notebooks/lessons/search.py against a search through all sentences of a toy model."""

import itertools

import pytest
import torch

from lessons.search import beam_search, penalty
from lessons.vocabulary import BEGIN, END, PAD

WORDS = 7
LONGEST = 3


class Table:
    """The next token depends on the last two; states are the token before."""

    def __init__(self, seed):
        scores = torch.randn(WORDS, WORDS, WORDS, generator=torch.Generator().manual_seed(seed))
        scores[..., [PAD, BEGIN]] = -torch.inf
        self.table = (2 * scores).log_softmax(-1)

    def start(self, source):
        return source[:, 0]

    def next(self, state, tokens):
        return self.table[state, tokens], tokens

    def select(self, state, rows):
        return state[rows]


def best_of_all(model, first, alpha):
    """The best sentence of at most LONGEST tokens, by trying them all."""
    found = []
    for length in range(1, LONGEST + 1):
        for sentence in itertools.product(range(WORDS), repeat=length):
            ends = END in sentence
            if (ends and sentence.index(END) != length - 1) or (not ends and length < LONGEST):
                continue
            before, last, total = first, BEGIN, 0.0
            for token in sentence:
                total += model.table[before, last, token].item()
                before, last = last, token
            found.append((total / penalty(torch.tensor(length), alpha).item(), sentence))
    return max(found)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_finds_the_best_sentence(seed, alpha):
    model = Table(seed)
    source = torch.tensor([[3, 4], [5, 5], [6, 4]])
    rows, scores = beam_search(model, source, LONGEST, beams=WORDS**2, alpha=alpha)
    for row, score, first in zip(
        rows.tolist(), scores.tolist(), source[:, 0].tolist(), strict=True
    ):
        expected, sentence = best_of_all(model, first, alpha)
        assert score == pytest.approx(expected, rel=1e-5)
        assert tuple(row[: len(sentence)]) == sentence
        assert not any(row[len(sentence) :])
