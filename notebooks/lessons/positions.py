"""Sinusoidal positions: a token's place as sines and cosines of falling frequency.

Vaswani et al. (2017, section 3.5). Attention treats its keys as a set, so it needs them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sinusoids(length: int, size: int) -> Tensor:
    """P[p, 2i] = sin(p / 10000^(2i/E)), P[p, 2i + 1] = cos(p / 10000^(2i/E)).

    A pair of columns turns by a fixed angle per step. P[p + k] is thus a rotation of P[p] that
    depends only on k, and a linear layer can learn to attend k places back.

    Args:
        length: Positions.
        size: E, even.

    Returns:
        (length, E), values from -1 to 1.
    """
    if size % 2:
        raise ValueError(f"the size {size} is odd; sines and cosines come in pairs")
    frequencies = torch.exp(torch.arange(0, size, 2) * (-math.log(10_000.0) / size))  # (E/2,)
    angles = torch.arange(length).unsqueeze(1) * frequencies  # (length, E/2)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)  # (length, E)
