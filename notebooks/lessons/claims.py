"""The strictness of a notebook's claims: full only in a full run on real data."""

from __future__ import annotations

import os
from typing import TypeVar

from . import data, settings

T = TypeVar("T")

#: True for a full run on real data.
STRICT: bool = not settings.SMALL and bool(os.environ.get(data.VARIABLE))


def bound(*, strict: T, loose: T) -> T:
    """Returns the bound of a claim in this run.

    Args:
        strict: For a full run on real data.
        loose: For a small run, and for a generated sample. The result of some ten steps of training
            differs between processors, so it supports no strict claim.

    Returns:
        One of the two.
    """
    return strict if STRICT else loose
