"""How strictly a notebook's claims are checked: fully only in a full run on real data."""

from __future__ import annotations

import os
from typing import TypeVar

from . import data, settings

T = TypeVar("T")

#: True for a full run on real data.
STRICT: bool = not settings.SMALL and bool(os.environ.get(data.VARIABLE))


def bound(*, strict: T, loose: T) -> T:
    """The bound that this run's claim is held to.

    Args:
        strict: For a full run on real data.
        loose: For a small run, and for a generated sample. Some ten steps of training end
            elsewhere on another processor, so what they reach is hardly a claim.

    Returns:
        One of the two.
    """
    return strict if STRICT else loose
