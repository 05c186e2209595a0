"""The training of the first Transformers: label smoothing and warm-up of the learning rate."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .vocabulary import PAD


def smoothed_targets(targets: Tensor, vocabulary: int, smoothing: float) -> Tensor:
    """1 - ε for the correct token, and ε spread over the whole vocabulary.

    Szegedy et al. (2016, section 7); Vaswani et al. (2017, section 5.4) use ε = 0.1.

    Args:
        targets: (...), the correct tokens.
        vocabulary: V.
        smoothing: ε.

    Returns:
        (..., V), probabilities.
    """
    right = torch.nn.functional.one_hot(targets, vocabulary).float()
    return (1 - smoothing) * right + smoothing / vocabulary


def label_smoothing(smoothing: float) -> Callable[[Tensor, Tensor], Tensor]:
    """The cross-entropy with smoothed targets, without padding.

    For the model's probabilities p, it is (1 - ε)(-log p_right) plus ε times the mean of -log p
    over the vocabulary. This needs no target of the vocabulary's size.

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
    """E^-0.5 · min(step^-0.5, step · steps^-1.5): a linear rise, then a fall by the root.

    Vaswani et al. (2017, section 5.3).

    Args:
        size: E.
        steps: Steps of the rise.

    Returns:
        The learning rate of a step, from 1.
    """
    return lambda step: size**-0.5 * min(step**-0.5, step * steps**-1.5)
