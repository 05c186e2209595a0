"""How the first Transformers were trained: label smoothing and a learning rate that warms up."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .vocabulary import PAD


def smoothed_targets(targets: Tensor, vocabulary: int, smoothing: float) -> Tensor:
    """1 - ε for the right token, and ε shared by all of the vocabulary.

    Szegedy et al. (2016, section 7); Vaswani et al. (2017, section 5.4) use ε = 0.1.

    Args:
        targets: (...), the right tokens.
        vocabulary: V.
        smoothing: ε.

    Returns:
        (..., V), probabilities.
    """
    right = torch.nn.functional.one_hot(targets, vocabulary).float()
    return (1 - smoothing) * right + smoothing / vocabulary


def label_smoothing(smoothing: float) -> Callable[[Tensor, Tensor], Tensor]:
    """The cross-entropy against smoothed targets, of tokens that are not padding.

    With p the model's probabilities, it is (1 - ε)(-log p_right) + ε mean over the vocabulary of
    (-log p), which needs no target of the vocabulary's size.

    Args:
        smoothing: ε; 0 is the plain cross-entropy.

    Returns:
        A loss of logits (B, T, V) and targets (B, T).
    """

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        real = targets != PAD
        surprise = -logits[real].log_softmax(dim=-1)  # (tokens, V)
        right = surprise.gather(1, targets[real].unsqueeze(1)).squeeze(1)
        return ((1 - smoothing) * right + smoothing * surprise.mean(dim=-1)).mean()

    return loss


def warm_up(size: int, steps: int) -> Callable[[int], float]:
    """E^-0.5 · min(step^-0.5, step · steps^-1.5): up in a line, down by the root.

    Vaswani et al. (2017, section 5.3).

    Args:
        size: E.
        steps: How many the rise takes.

    Returns:
        The learning rate of a step, from 1.
    """
    return lambda step: size**-0.5 * min(step**-0.5, step * steps**-1.5)
