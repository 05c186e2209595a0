"""The same block on images: a picture is cut into patches, which are its tokens.

Dosovitskiy et al. (2021, section 3.1): patches, a class token in front, learned positions, pre-norm
blocks, and a classifier that reads the class token.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .transformer import Sizes, Stack


def to_patches(images: Tensor, side: int) -> Tensor:
    """Cuts pictures into squares, row by row.

    Args:
        images: (B, C, height, width), both multiples of the side.
        side: The side of a square, P.

    Returns:
        (B, patches, C·P·P).
    """
    squares = images.unfold(2, side, side).unfold(3, side, side)  # (B, C, rows, columns, P, P)
    return squares.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


def from_patches(patches: Tensor, side: int, shape: tuple[int, int, int]) -> Tensor:
    """Puts the pictures together again.

    Args:
        patches: (B, patches, C·P·P).
        side: P.
        shape: C, height and width of the pictures.

    Returns:
        (B, C, height, width).
    """
    channels, height, width = shape
    squares = patches.unflatten(2, (channels, side, side))  # (B, patches, C, P, P)
    grid = squares.unflatten(1, (height // side, width // side))  # (B, rows, columns, C, P, P)
    return grid.permute(0, 3, 1, 4, 2, 5).reshape(len(patches), channels, height, width)


class VisionTransformer(nn.Module):
    """Classifies pictures by a stack of the text model's blocks.

    Args:
        patches: How many a picture has.
        pixels: The numbers of a patch, all channels together.
        classes: C.
        sizes: The sizes of the stack.
    """

    def __init__(self, patches: int, pixels: int, classes: int, sizes: Sizes) -> None:
        super().__init__()
        self.embed = nn.Linear(pixels, sizes.size)
        self.first = nn.Parameter(torch.zeros(1, 1, sizes.size))  # the class token
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + patches, sizes.size))
        self.stack = Stack(sizes)
        self.classify = nn.Linear(sizes.size, classes)

    def forward(self, patches: Tensor) -> Tensor:
        """Classifies.

        Args:
            patches: (B, patches, pixels).

        Returns:
            Logits (B, C).
        """
        first = self.first.expand(len(patches), -1, -1)
        states = torch.cat([first, self.embed(patches)], dim=1) + self.positions
        return self.classify(self.stack(states, None)[:, 0])
