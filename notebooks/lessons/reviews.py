"""Film reviews to classify: sst2 or, without it, sentences of a toy grammar; and the loop."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from . import data
from .vocabulary import Vocabulary, pad


@dataclass(frozen=True)
class Review:
    """A sentence about a film and its judgment."""

    #: Its words.
    words: tuple[str, ...]
    #: 1 for a positive, 0 for a negative sentence.
    label: int


@dataclass(frozen=True)
class Reviews:
    """Sentences to learn from, to choose the best epoch on, and to test on."""

    #: To learn from.
    train: list[Review]
    #: To choose the best epoch on.
    dev: list[Review]
    #: To test on.
    test: list[Review]
    #: Words that occur twice in `train`.
    vocabulary: Vocabulary
    #: An example sentence.
    example: tuple[str, ...]
    #: True for generated sentences.
    generated: bool


def load_reviews(train_size: int | None = None) -> Reviews:
    """The two-class Stanford Sentiment Treebank: its training, validation and test sentences.

    Args:
        train_size: Maximum number of training sentences; all by default.

    Returns:
        The sentences; generated ones where there are no real data.
    """
    folder = data.find("sst2")
    if folder is None:
        made = _toy_reviews()
        train, dev, test = made[450:], made[300:450], made[:300]
    else:
        train, dev, test = (_read(folder / f"{name}.tsv") for name in ("train", "dev", "test"))
    random.Random(0).shuffle(train)
    train = train[:train_size]
    vocabulary = Vocabulary((review.words for review in train), at_least=2)
    example = tuple(
        ["the", "plot", "is", "predictable", "but", "the", "acting", "is", "funny", "and", "moving"]
    )
    return Reviews(train, dev, test, vocabulary, example, generated=folder is None)


@torch.no_grad()
def accuracy(model: nn.Module, reviews: Sequence[Review], vocabulary: Vocabulary) -> float:
    """A classifier's share of correct sentences.

    Args:
        model: In eval mode.
        reviews: The sentences.
        vocabulary: Numbers their words.

    Returns:
        0 to 1.
    """
    right = 0
    for start in range(0, len(reviews), 100):
        group = reviews[start : start + 100]
        tokens = pad([vocabulary.encode(review.words)[:-1] for review in group])
        labels = torch.tensor([review.label for review in group])
        right += int((model(tokens)[0].argmax(dim=-1) == labels).sum())
    return right / len(reviews)


def word_polarity(reviews: Sequence[Review], at_least: int = 8) -> dict[str, float]:
    """The log-ratio of a word's frequency in positive and negative sentences.

    Args:
        reviews: The sentences to count in.
        at_least: Minimum number of sentences with the word.

    Returns:
        log of the ratio of its shares of both classes, with one more sentence counted in each.
    """
    counts = {label: Counter[str]() for label in (0, 1)}
    for review in reviews:
        counts[review.label].update(set(review.words))
    totals = {label: sum(review.label == label for review in reviews) for label in (0, 1)}
    return {
        word: math.log((counts[1][word] + 1) / (totals[1] + 2))
        - math.log((counts[0][word] + 1) / (totals[0] + 2))
        for word in counts[0] | counts[1]
        if counts[0][word] + counts[1][word] >= at_least
    }


def _read(file: Path) -> list[Review]:
    lines = file.read_text(encoding="utf-8").splitlines()
    rows = (line.rsplit("\t", 1) for line in lines)
    return [Review(tuple(text.split()), int(label)) for text, label in rows]


def _toy_reviews() -> list[Review]:
    """Sentences with one positive or negative word, reversed by a "not"."""
    positive = {"good": 1, "funny": 1, "moving": 1, "bad": 0, "dull": 0, "predictable": 0}
    things = ("the film", "the plot", "the acting", "this story", "the music", "the ending")
    ways = ("is", "is really", "is not", "is simply", "was", "was not")
    ends = ("", "and long", "for once", "as always", "i think", "to me")
    found = []
    for thing, way, word, end in itertools.product(things, ways, positive, ends):
        words = tuple(f"{thing} {way} {word} {end}".split())
        found.append(Review(words, positive[word] ^ ("not" in words)))
    random.Random(0).shuffle(found)
    return found
