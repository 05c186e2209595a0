"""Temporary eval mode."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Sets a model to eval mode, and restores its mode at the end."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
