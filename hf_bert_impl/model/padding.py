"""Padding-free execution: which tokens of a padded batch are computed, and in which order.

Notation: B batch, S sequence, T computed tokens of the whole batch, `...` any trailing shape.

A batch is unpadded once before the embeddings and padded once after the last layer; in between
everything runs on `(T, hidden)`. Rows are ordered by length, so that rows of one length lie side by
side and attention over them is a view of the packed tensor, not a copy (the idea of packing is that
of flash-attention's BERT, https://github.com/Dao-AILab/flash-attention; the ordering is for
backends that take equal lengths only).
"""

from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor


class RowGroup(NamedTuple):
    """Neighbouring rows of equal length in the packed order."""

    rows: int
    #: Computed tokens a row. The first `keys` of them are attended.
    queries: int
    #: Attended tokens a row: what its queries look at.
    keys: int


@dataclass(frozen=True)
class Packing:
    """The computed tokens of a padded batch.

    A token is computed when the mask attends to it, or when a head asks for its hidden state all
    the same (the pooler reads position 0, a loss reads every labelled position). The latter are
    queries only: nothing attends to them, as upstream's mask has it.
    """

    batch_size: int
    sequence_length: int
    #: (T,) flat position `row * S + column` of each computed token.
    token_index: Tensor
    #: (T,) whether the hidden state goes into the padded output; None when all do.
    visible: Tensor | None
    #: Runs of equal length, in packed order.
    groups: tuple[RowGroup, ...]
    #: (B,) where each row's position 0 lies in the packed order; None unless it was asked for.
    first_token: Tensor | None

    def to(self, device: torch.device, non_blocking: bool = False) -> "Packing":
        """The same on another device. accelerate calls it where layers lie on several."""
        if self.token_index.device == torch.device(device):
            return self
        tensors = ("token_index", "visible", "first_token")
        moved = {
            name: value.to(device, non_blocking=non_blocking)
            for name in tensors
            if (value := getattr(self, name)) is not None
        }
        return replace(self, **moved)

    def unpad(self, padded: Tensor) -> Tensor:
        """(B, S, ...) to (T, ...)."""
        return padded.flatten(0, 1).index_select(0, self.token_index)

    def pad(self, packed: Tensor) -> Tensor:
        """(T, ...) to (B, S, ...), zero at every position that is not computed."""
        padded = packed.new_zeros((self.batch_size * self.sequence_length, *packed.shape[1:]))
        padded = padded.index_copy(0, self.token_index, packed)
        return padded.unflatten(0, (self.batch_size, self.sequence_length))

    def pad_visible(self, packed: Tensor) -> Tensor:
        """As `pad`, leaving out tokens that were computed for the pooler alone."""
        if self.visible is not None:
            packed = packed.masked_fill(~self.visible[:, None], 0)
        return self.pad(packed)

    def refill(self, padded: Tensor, packed: Tensor) -> Tensor:
        """(T, ...) out of `padded`, so that gradients pass through it; hidden ones of `packed`."""
        fresh = self.unpad(padded)
        return fresh if self.visible is None else torch.where(self.visible[:, None], fresh, packed)


def plan_packing(
    attended: Tensor, required: Tensor | None = None, first_token: bool = False
) -> Packing | None:
    """Decides which tokens of a batch are computed.

    Args:
        attended: (B, S) bool, the attention mask.
        required: (B, S) bool, positions whose hidden state is wanted though they are not attended.
        first_token: Whether position 0 of every row is wanted, attended or not.

    Returns:
        The packing, or None where every hidden state is wanted and nothing is gained.
    """
    batch_size, sequence_length = attended.shape
    visible = attended if required is None else attended | required
    if bool(visible.all()):
        return None
    computed = visible
    if first_token:
        computed = visible.clone()
        computed[:, 0] = True

    keys, queries = attended.sum(dim=1), computed.sum(dim=1)
    order = torch.argsort(queries * (sequence_length + 1) + keys, stable=True)  # (B,)
    # One transfer for both lengths: on an accelerator this line waits for the device.
    lengths: list[list[int]] = torch.stack((queries, keys), dim=1)[order].tolist()

    only_queries = [q - k for q, k in lengths]
    if any(only_queries):
        # Within a row attended tokens come first, so that a row's keys are a prefix of it.
        rank = (~attended).to(torch.int8) + (~computed).to(torch.int8)  # 0 attended, 1 query, 2 out
        columns = torch.argsort(rank[order], dim=1, stable=True)  # (B, S)
        kept = torch.arange(sequence_length, device=order.device) < queries[order, None]
        token_index = (order[:, None] * sequence_length + columns)[kept]
        is_visible = visible.flatten()[token_index]
    else:
        rows, columns = computed[order].nonzero(as_tuple=True)
        token_index = order[rows] * sequence_length + columns
        is_visible = None

    groups = []
    for (q, k), rows_of_length in groupby(lengths):
        if q:
            groups.append(RowGroup(rows=len(list(rows_of_length)), queries=q, keys=k))

    first = None
    if first_token:
        starts = torch.zeros_like(order)
        starts[1:] = queries[order].cumsum(0)[:-1]
        # Column 0 is the row's first key, or the first of its queries that are not attended.
        offset = torch.where(attended[order, 0], 0, keys[order])
        first = torch.empty_like(order).index_copy(0, order, starts + offset)
    return Packing(batch_size, sequence_length, token_index, is_visible, tuple(groups), first)
