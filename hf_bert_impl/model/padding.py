"""Padding-free execution: which tokens of a batch are computed, and in which order.

Notation: B batch, S sequence, T computed tokens of the whole batch, R sequences, L the longest of
them, `...` any trailing shape.

A batch is unpadded once before the embeddings and padded once after the last layer; in between
everything runs on `(T, hidden)`. Sequences are ordered by length, so that those of one length lie
side by side and attention over them is a view of the packed tensor, not a copy (the idea of packing
is that of flash-attention's BERT, https://github.com/Dao-AILab/flash-attention; the ordering is for
backends that take equal lengths only).
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor


class RowGroup(NamedTuple):
    """Neighbouring sequences of equal length in the packed order."""

    rows: int
    #: Computed tokens a row. The first `keys` of them are attended.
    queries: int
    #: Attended tokens a row: what its queries look at. Where there are none they look at nothing,
    #: or under "eager", which has a softmax over nothing, at all of the row alike.
    keys: int


@dataclass(frozen=True)
class Packing:
    """The computed tokens of a batch.

    A token is computed when the mask attends to it, or when a head asks for its hidden state all
    the same (the pooler reads position 0, a loss reads every labelled position). The latter are
    queries only: nothing attends to them, as upstream's mask has it.

    The caller's tensors are (B, S). Sequences are the rows of the batch, or, in input that came
    packed, stretches of its only row; as a padded batch of their own they are (R, L).
    """

    #: (B, S) of the caller's tensors.
    shape: tuple[int, int]
    #: (T,) flat position `row * S + column` of each computed token there.
    token_index: Tensor
    #: (R, L) of the padded batch of sequences; that of the caller unless the input came packed.
    grid: tuple[int, int]
    #: (T,) flat position of each computed token in it.
    grid_index: Tensor
    #: Runs of equal length, in packed order.
    groups: tuple[RowGroup, ...]
    #: (T,) whether the hidden state goes into the padded output; None when all do.
    visible: Tensor | None = None
    #: (R,) where each sequence's position 0 lies in the packed order; None unless it was asked for.
    first_token: Tensor | None = None
    #: (K,) tokens whose state the caller reads after the last layer; None for all.
    kept: Tensor | None = None

    def to(self, device: torch.device, non_blocking: bool = False) -> "Packing":
        """The same on another device. accelerate calls it where layers lie on several."""
        if self.token_index.device == torch.device(device):
            return self
        moved: dict[str, Any] = {
            field.name: value.to(device, non_blocking=non_blocking)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **moved)

    def unpad(self, padded: Tensor) -> Tensor:
        """(B, S, ...) to (T, ...)."""
        return padded.flatten(0, 1).index_select(0, self.token_index)

    def pad(self, packed: Tensor) -> Tensor:
        """(T, ...) to (B, S, ...), zero at every position that is not computed or not visible."""
        if self.visible is not None:
            packed = packed.masked_fill(~self.visible[:, None], 0)
        return scatter(packed, self.token_index, self.shape)

    def refill(self, padded: Tensor, packed: Tensor) -> Tensor:
        """(T, ...) out of `padded`, so that gradients pass through it; hidden ones of `packed`."""
        fresh = self.unpad(padded)
        return fresh if self.visible is None else torch.where(self.visible[:, None], fresh, packed)

    def to_grid(self, packed: Tensor) -> Tensor:
        """(T, ...) to (R, L, ...), zero at every position that is not computed."""
        return scatter(packed, self.grid_index, self.grid)

    def from_grid(self, padded: Tensor) -> Tensor:
        """(R, L, ...) to (T, ...)."""
        return padded.flatten(0, 1).index_select(0, self.grid_index)

    def expand_kept(self, states: Tensor) -> Tensor:
        """(K, ...), the states of `kept`, to (T, ...) with zeros."""
        if self.kept is None:
            return states
        count = self.token_index.shape[0]
        return states.new_zeros((count, *states.shape[1:])).index_copy(0, self.kept, states)

    @cached_property
    def key_index(self) -> Tensor | None:
        """(keys of all sequences,) where the attended tokens lie; None when all T are attended."""
        if all(group.queries == group.keys for group in self.groups):
            return None
        starts, kept = 0, []
        for rows, queries, keys in self.groups:
            block = torch.arange(starts, starts + rows * queries, device="cpu")
            block = block.view(rows, queries)
            kept.append(block[:, :keys].flatten())
            starts += rows * queries
        return torch.cat(kept).to(self.token_index.device)

    @cached_property
    def cumulative_lengths(self) -> tuple[Tensor, Tensor, int, int]:
        """Running totals (R' + 1,) int32 of queries and of keys, and the longest of each.

        What variable-length attention kernels take. R' leaves out sequences without tokens.
        """
        queries = [group.queries for group in self.groups for _ in range(group.rows)]
        keys = [group.keys for group in self.groups for _ in range(group.rows)]
        totals = torch.tensor([[0, *queries], [0, *keys]], dtype=torch.int32, device="cpu")
        totals = totals.cumsum(dim=1, dtype=torch.int32)
        totals = totals.to(self.token_index.device, non_blocking=True)
        return totals[0], totals[1], max(queries), max(keys)


def plan_packing(
    attended: Tensor,
    required: Tensor | None = None,
    first_token: bool = False,
    only_required: bool = False,
    whole_if_empty: bool = False,
) -> Packing | None:
    """Decides which tokens of a padded batch are computed.

    Args:
        attended: (B, S) bool, the attention mask.
        required: (B, S) bool, positions whose hidden state is wanted though they are not attended.
        first_token: Whether position 0 of every row is wanted, attended or not.
        only_required: Whether nothing else is read after the last layer.
        whole_if_empty: Whether a row that attends to nothing is computed as a whole, since its
            queries look at all of it alike.

    Returns:
        The packing, or None where every hidden state is wanted and nothing is gained.
    """
    visible = attended if required is None else attended | required
    if not only_required and bool(visible.all()):
        return None
    batch_size, sequence_length = attended.shape
    computed = visible.clone()
    if first_token:
        computed[:, 0] = True
    if whole_if_empty:
        computed |= ~attended.any(dim=1, keepdim=True)

    keys, queries = attended.sum(dim=1), computed.sum(dim=1)
    order = torch.argsort(queries * (sequence_length + 1) + keys, stable=True)  # (B,)
    # One transfer for both lengths: on an accelerator this line waits for the device.
    lengths: list[list[int]] = torch.stack((queries, keys), dim=1)[order].tolist()

    is_visible = None
    if any(q != k for q, k in lengths):
        # Within a row attended tokens come first, so that a row's keys are a prefix of it.
        rank = (~attended).to(torch.int8) + (~computed).to(torch.int8)  # 0 attended, 1 query, 2 out
        columns = torch.argsort(rank[order], dim=1, stable=True)  # (B, S)
        chosen = torch.arange(sequence_length, device=order.device) < queries[order, None]
        token_index = (order[:, None] * sequence_length + columns)[chosen]
        is_visible = visible.flatten()[token_index]
    else:
        rows, columns = computed[order].nonzero(as_tuple=True)
        token_index = order[rows] * sequence_length + columns

    first = None
    if first_token:
        # Column 0 is the row's first key, or the first of its queries that are not attended.
        offset = torch.where(attended[order, 0], 0, keys[order])
        first = _in_caller_order(order, _starts(queries[order]) + offset)
    shape = (batch_size, sequence_length)
    packing = Packing(
        shape, token_index, shape, token_index, _groups(lengths), is_visible, first_token=first
    )
    return _keep(packing, required) if only_required else packing


def plan_packed_input(
    lengths: list[int],
    device: torch.device,
    required: Tensor | None = None,
    first_token: bool = False,
    only_required: bool = False,
) -> Packing:
    """The packing of a batch of one row that holds several sequences end to end.

    Args:
        lengths: Tokens of each sequence; their sum is S.
        device: Where the tokens are.
        required: (1, S) bool, as in `plan_packing`.
        first_token: Whether the first token of every sequence is wanted.
        only_required: As in `plan_packing`.
    """
    order = sorted(range(len(lengths)), key=lambda row: lengths[row])
    # On the CPU, whatever the default device is.
    ordered = torch.tensor([lengths[row] for row in order], device="cpu")  # (R,)
    rows = torch.tensor(order, device="cpu")
    # Place of each row in the order.
    source = _in_caller_order(rows, torch.arange(len(order), device="cpu"))
    # Where the ordered rows begin in the input.
    starts = _starts(torch.tensor(lengths, device="cpu"))[rows]
    # Position of every token in its sequence, in packed order.
    offset = torch.arange(int(ordered.sum()), device="cpu")
    offset = offset - _starts(ordered).repeat_interleave(ordered)
    token_index = starts.repeat_interleave(ordered) + offset
    longest = int(ordered.max())
    grid_index = rows.repeat_interleave(ordered) * longest + offset
    first = _starts(ordered)[source].to(device) if first_token else None
    packing = Packing(
        (1, sum(lengths)),
        token_index.to(device),
        (len(lengths), longest),
        grid_index.to(device),
        _groups([[length, length] for length in ordered.tolist()]),
        first_token=first,
    )
    return _keep(packing, required) if only_required else packing


def plan_dense(batch_size: int, sequence_length: int, device: torch.device) -> Packing:
    """The packing of a batch without padding: every token, in place."""
    index = torch.arange(batch_size * sequence_length, device=device)
    shape = (batch_size, sequence_length)
    group = RowGroup(batch_size, sequence_length, sequence_length)
    return Packing(shape, index, shape, index, (group,), first_token=index[::sequence_length])


def _keep(packing: Packing, required: Tensor | None) -> Packing:
    """Marks the required tokens, and position 0 where it is wanted, as all that is read."""
    wanted = torch.zeros_like(packing.token_index, dtype=torch.bool)
    if required is not None:
        wanted |= required.flatten()[packing.token_index]
    if packing.first_token is not None:
        wanted[packing.first_token] = True
    return replace(packing, kept=wanted.nonzero().flatten())


def _groups(lengths: list[list[int]]) -> tuple[RowGroup, ...]:
    """Runs of equal (queries, keys) in the packed order; empty rows have no run."""
    return tuple(
        RowGroup(rows=len(list(same)), queries=q, keys=k) for (q, k), same in groupby(lengths) if q
    )


def _starts(lengths: Tensor) -> Tensor:
    """(R,) lengths to where each begins when laid end to end."""
    return lengths.cumsum(0) - lengths


def _in_caller_order(order: Tensor, values: Tensor) -> Tensor:
    """Values of the ordered rows, (R,), in the order in which the caller has the rows."""
    return torch.empty_like(values).index_copy(0, order, values)


def is_traced(device: torch.device) -> bool:
    """Whether this call is recorded as a program: no shape in it may depend on a mask's values."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or device.type == "meta"


def scatter(packed: Tensor, index: Tensor, shape: tuple[int, int]) -> Tensor:
    """(T, ...) to (*shape, ...), each at its flat position in `index` (T,), zero elsewhere."""
    padded = packed.new_zeros((shape[0] * shape[1], *packed.shape[1:]))
    return padded.index_copy_(0, index, packed).unflatten(0, shape)
