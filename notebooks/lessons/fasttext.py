"""Word vectors from the characters of a word: fastText's skip-gram, in small.

Bojanowski et al. (2017): a word's vector is the mean of the vectors of its character n-grams and of
the word itself (section 3.2), and learns to predict its neighbours (section 3.1). A word that never
occurred still has n-grams, so it has a vector.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

#: Rows of the table that all n-grams share; several n-grams may get the same row.
BUCKETS = 20_000


def ngrams(word: str, shortest: int = 3, longest: int = 6) -> list[str]:
    """The word between marks, and its character n-grams, such as `<wh`, `whe`, `re>`."""
    marked = f"<{word}>"
    found = [
        marked[start : start + size]
        for size in range(shortest, longest + 1)
        for start in range(len(marked) - size + 1)
    ]
    return list(dict.fromkeys([marked, *found]))


class FastTextVectors(nn.Module):
    """A table of n-gram vectors, and of the vectors that predict neighbours.

    Args:
        sentences: Lists of words to learn from.
        size: Numbers of a vector.
    """

    def __init__(self, sentences: Sequence[Sequence[str]], size: int = 100) -> None:
        super().__init__()
        counts = Counter(word for words in sentences for word in words)
        self.words = {word: number for number, word in enumerate(counts)}
        self.table = nn.EmbeddingBag(BUCKETS, size, mode="mean")
        self.neighbours = nn.Embedding(len(self.words), size)
        nn.init.uniform_(self.table.weight, -1 / size, 1 / size)
        nn.init.zeros_(self.neighbours.weight)
        #: Frequent words are drawn more often as wrong neighbours, but less than in proportion.
        self.noise = torch.tensor([float(count) for count in counts.values()]) ** 0.75
        self.rows = [self._rows(word) for word in self.words]

    def encode(self, words: Sequence[str]) -> np.ndarray:
        """The vectors of words, known or not: (words, size)."""
        with torch.no_grad():
            return self._of([self._rows(word) for word in words]).numpy()

    def learn(
        self,
        sentences: Sequence[Sequence[str]],
        *,
        epochs: int,
        window: int = 3,
        batch_size: int = 1024,
    ) -> float:
        """Trains: a word predicts its neighbours better than five random words.

        Args:
            sentences: Those of the constructor.
            epochs: Number of passes.
            window: Neighbours on each side.
            batch_size: Pairs of neighbours per step.

        Returns:
            The mean loss of the last epoch, in nats.
        """
        numbered = [[self.words[word] for word in words] for words in sentences]
        pairs = [
            (word, other)
            for words in numbered
            for place, word in enumerate(words)
            for other in words[max(0, place - window) : place] + words[place + 1 :][:window]
        ]
        optimizer = torch.optim.Adam(self.parameters(), lr=3e-3)
        draw, generator = random.Random(0), torch.Generator().manual_seed(0)
        losses: list[float] = []
        for _ in range(epochs):
            draw.shuffle(pairs)
            losses = []
            for start in range(0, len(pairs), batch_size):
                chosen = pairs[start : start + batch_size]
                centre = self._of([self.rows[word] for word, _ in chosen])  # (P, size)
                right = torch.tensor([other for _, other in chosen])  # (P,)
                drawn = torch.multinomial(
                    self.noise, 5 * len(chosen), replacement=True, generator=generator
                )
                wrong = drawn.view(-1, 5)  # (P, 5)
                scores = torch.einsum(
                    "pe,pke->pk", centre, self.neighbours(torch.cat([right[:, None], wrong], dim=1))
                )
                truth = torch.zeros_like(scores)
                truth[:, 0] = 1
                loss = nn.functional.binary_cross_entropy_with_logits(scores, truth)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return sum(losses) / len(losses)

    def _of(self, rows: Sequence[Sequence[int]]) -> Tensor:
        starts = [0, *np.cumsum([len(row) for row in rows[:-1]]).tolist()] if rows else []
        return self.table(torch.tensor([n for row in rows for n in row]), torch.tensor(starts))

    def _rows(self, word: str) -> list[int]:
        # crc32 is the same in every process; Python's own hash of a text is not.
        return [zlib.crc32(part.encode()) % BUCKETS for part in ngrams(word)]
