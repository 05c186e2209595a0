"""The size of a run of the notebooks.

The environment variable HF_BERT_NOTEBOOKS is `full` or `small`. A full run of all lessons takes
about an hour in one thread of an AMD EPYC and makes the stored outputs. A small run takes three
to five minutes, for CI.
"""

from __future__ import annotations

import atexit
import gc
import os
import random
from typing import TypeVar

import numpy as np
import torch

T = TypeVar("T")

VARIABLE = "HF_BERT_NOTEBOOKS"

# Imported modules stay in memory. Without the collector's search among them, a kernel ends two
# seconds sooner.
gc.freeze()
atexit.register(gc.freeze)


def is_small() -> bool:
    """True if the environment asks for a small run.

    Raises:
        ValueError: The variable names another size.
    """
    named = os.environ.get(VARIABLE) or "full"
    if named not in ("small", "full"):
        raise ValueError(f"{VARIABLE} is {named!r}; expected 'small' or 'full' (the default)")
    return named == "small"


#: True where the run is a small one.
SMALL: bool = is_small()


def choose(*, full: T, small: T) -> T:
    """Returns one of two values by the size of the run.

    Args:
        full: The value of a full run.
        small: The value of a small run.

    Returns:
        One of the two.
    """
    return small if SMALL else full


def seed(number: int = 0) -> None:
    """Seeds the random numbers of Python, NumPy and PyTorch, to make runs reproducible.

    Args:
        number: The seed.
    """
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002 - libraries draw from NumPy's global generator
    torch.manual_seed(number)
