"""What is measured: mixes of sequence lengths in padded batches, and texts."""

from __future__ import annotations

import dataclasses
import os
import random
from collections.abc import Callable
from pathlib import Path

from hf_bert_impl.measuring.batches import Case, log_normal_lengths, scale_lengths


class Unavailable(Exception):
    """A contestant cannot run, or has failed; the message says why, in a few words."""


#: `encode` has as many rounds as its texts have parts: each round encodes one of them.
PARTS = 5


def _uniform(least: int, greatest: int) -> Callable[[int], list[int]]:
    """Lengths by the number of rows, each as likely as the others."""

    def lengths(rows: int) -> list[int]:
        draw = random.Random(0)
        return [draw.randint(least, greatest) for _ in range(rows)]

    return lengths


@dataclasses.dataclass(frozen=True)
class CaseKind:
    """What is known of a case before a model is."""

    what: str
    """What is measured, for people."""
    rows: int = 0
    """Sequences of its padded batch; 0 where contestants take text."""
    lengths: Callable[[int], list[int]] = log_normal_lengths
    """Their lengths, by the number of rows."""


#: In the order in which the report shows them.
CASES = {
    "short": CaseKind("32 sentences, log-normal lengths 4..128: about 55 % of it is padding", 32),
    "uniform": CaseKind("32 sequences, lengths uniform over 4..128", 32, _uniform(4, 128)),
    "long": CaseKind("8 documents, lengths uniform over 33..500", 8, _uniform(33, 500)),
    "full": CaseKind("16 sequences of 64: no padding at all", 16, _uniform(64, 64)),
    "sentence": CaseKind("one sentence of 12 tokens", 1, _uniform(12, 12)),
    "encode": CaseKind("text to sentence vectors, tokenising included"),
}
BATCHES = tuple(name for name, kind in CASES.items() if kind.rows)


def make_case(name: str, rows: int | None = None, positions: int = 512) -> Case:
    """The batch of a case.

    Args:
        name: A case of `BATCHES`.
        rows: Sequences; None takes the usual number.
        positions: How many the model has. With fewer than BERT's own all lengths shrink in
            proportion.

    Returns:
        The case, its width the longest length.
    """
    kind = CASES[name]
    lengths = scale_lengths(kind.lengths(rows or kind.rows), positions)
    return Case(name, tuple(lengths), max(lengths))


def sentences(number: int) -> tuple[list[str], str]:
    """Mixed sentences for `encode`, short reviews among lines of articles.

    Returns:
        The sentences and where they come from: the SST-2 and WikiText-2 files in the folder that
        HF_BERT_DATA names, alternating, or made-up words of log-normal numbers.
    """
    draw = random.Random(0)
    reviews = [line.rpartition("\t")[0] or line for line in _lines("sst2/*.tsv")]
    # Headings are written between equals signs.
    articles = [line for line in _lines("wikitext2/*.txt") if "= " not in line[:3]]
    if reviews and articles:
        real = [text for pair in zip(reviews, articles, strict=False) for text in pair]
        draw.shuffle(real)
        # A file that is too short is read again from its beginning.
        return [real[index % len(real)] for index in range(number)], "SST-2 and WikiText-2"
    lengths = log_normal_lengths(number, 3.0, 0.8, 2, 200)
    words = ["the", "river", "rose", "over", "night", "and", "music", "market", "window", "paper"]
    texts = [" ".join(draw.choice(words) for _ in range(length)) for length in lengths]
    return texts, "made-up sentences (HF_BERT_DATA is not set)"


def _lines(pattern: str) -> list[str]:
    folder = os.environ.get("HF_BERT_DATA")
    files = sorted(Path(folder).glob(pattern)) if folder else []
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [line.strip() for line in lines if line.strip()]
