"""Benchmark cases: mixes of sequence lengths in padded batches, and texts."""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hf_bert_impl.measuring.batches import Case, log_normal_lengths, scale_lengths


class Unavailable(Exception):
    """A contestant cannot run, or failed; the message says why in a few words."""


#: Rounds of `encode`; each encodes one part of the texts.
PARTS = 5


def _uniform(low: int, high: int, rows: int) -> list[int]:
    """Uniform lengths."""
    draw = random.Random(0)
    return [draw.randint(low, high) for _ in range(rows)]


@dataclasses.dataclass(frozen=True)
class CaseKind:
    """A description of a case, the rows of its padded batch (0 for texts), and their lengths."""

    what: str
    rows: int = 0
    lengths: Callable[[int], list[int]] = log_normal_lengths
    one_by_one: bool = False
    """Whether each row is a call of its own; times are then of one row."""


#: In the report's order.
CASES = {
    "short": CaseKind("32 sentences, log-normal lengths 4..128: about 55 % padding", 32),
    "uniform": CaseKind("32 sequences, lengths uniform over 4..128", 32, partial(_uniform, 4, 128)),
    "long": CaseKind("8 documents, lengths uniform over 33..500", 8, partial(_uniform, 33, 500)),
    "full": CaseKind("16 sequences of 64: no padding", 16, partial(_uniform, 64, 64)),
    "sentence": CaseKind("one sentence of 12 tokens", 1, partial(_uniform, 12, 12)),
    "queries": CaseKind(
        "64 queries one by one, lengths uniform over 5..40, time per query",
        rows=64,
        lengths=partial(_uniform, 5, 40),
        one_by_one=True,
    ),
    "encode": CaseKind("text to sentence vectors, including tokenization"),
}
BATCHES = tuple(name for name, kind in CASES.items() if kind.rows)


def make_case(name: str, rows: int | None = None, positions: int = 512) -> Case:
    """The batch of a case, as wide as its longest sequence.

    Args:
        name: One of `BATCHES`.
        rows: Number of sequences; None for the default.
        positions: The model's. With fewer than BERT's, all lengths shrink in proportion.
    """
    kind = CASES[name]
    lengths = scale_lengths(kind.lengths(rows or kind.rows), positions)
    return Case(name, tuple(lengths), max(lengths), kind.one_by_one)


def sentences(number: int) -> tuple[list[str], str]:
    """Mixed sentences for `encode`, short reviews among lines of articles, and their source.

    The source is the SST-2 and WikiText-2 files in the folder HF_BERT_DATA, alternating, or random
    words of log-normal numbers.
    """
    draw = random.Random(0)
    reviews = [line.rpartition("\t")[0] or line for line in _lines("sst2/*.tsv")]
    # Headings are written between equals signs.
    articles = [line for line in _lines("wikitext2/*.txt") if "= " not in line[:3]]
    if reviews and articles:
        real = [text for pair in zip(reviews, articles, strict=False) for text in pair]
        draw.shuffle(real)
        # A short file repeats.
        return [real[index % len(real)] for index in range(number)], "SST-2 and WikiText-2"
    lengths = log_normal_lengths(number, 3.0, 0.8, 2, 200)
    words = ["the", "river", "rose", "over", "night", "and", "music", "market", "window", "paper"]
    texts = [" ".join(draw.choice(words) for _ in range(length)) for length in lengths]
    return texts, "random words (HF_BERT_DATA is not set)"


def _lines(pattern: str) -> list[str]:
    folder = os.environ.get("HF_BERT_DATA")
    files = sorted(Path(folder).glob(pattern)) if folder else []
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [line.strip() for line in lines if line.strip()]
