"""The parts that races outside `hf-bert benchmark` share."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from hf_bert_impl.benchmark.cases import Unavailable
from hf_bert_impl.benchmark.contest import Contestant


def spread(ratios: Sequence[float]) -> str:
    """The median, the minimum and the maximum."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"


def stopped(one: Contestant, error: Unavailable) -> None:
    """Ends a race that a contestant has left.

    Raises:
        Unavailable: The contestant's error.
    """
    raise error
