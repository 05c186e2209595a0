"""Padding-free execution: which tokens of a batch are computed, and in which order.

Notation: B batch, S sequence, T computed tokens of the whole batch, R sequences, L the longest of
them, `...` any trailing shape.

A batch is unpadded once before the embeddings and padded once after the last layer; in between
everything runs on `(T, hidden)`. Sequences are ordered by length, so that those of one length lie
side by side and attention over them is a view of the packed tensor, not a copy (the idea of packing
is that of flash-attention's BERT, https://github.com/Dao-AILab/flash-attention; the ordering is for
backends that take equal lengths only).
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate, chain, groupby
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
    #: (R, L) of the padded batch of sequences; that of the caller unless the input came packed.
    grid: tuple[int, int]
    #: Runs of equal length, in packed order.
    groups: tuple[RowGroup, ...]
    #: Where the tensors below are.
    device: torch.device
    #: (T,) flat position `row * S + column` of each computed token in the caller's tensors; None
    #: where they are all of them, in the caller's order.
    token_index: Tensor | None = None
    #: (T,) the place of each computed token in its sequence; None where it is the column.
    column: Tensor | None = None
    #: Of input that came packed, the number of each sequence, in packed order.
    order: tuple[int, ...] = ()
    #: (T,) whether the hidden state goes into the padded output; None when all do.
    visible: Tensor | None = None
    #: (R,) where each sequence's position 0 lies in the packed order; None where nobody asks, and
    #: where it is every L-th token.
    first_token: Tensor | None = None
    #: (K,) tokens whose state the caller reads after the last layer; None for all.
    kept: Tensor | None = None

    @cached_property
    def tokens(self) -> int:
        """T."""
        return sum(group.rows * group.queries for group in self.groups)

    def to(self, device: torch.device, non_blocking: bool = False) -> "Packing":
        """The same on another device. accelerate calls it where layers lie on several."""
        device = torch.device(device)
        if self.device == device:
            return self
        moved: dict[str, Any] = {
            field.name: value.to(device, non_blocking=non_blocking)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, device=device, **moved)

    def unpad(self, padded: Tensor) -> Tensor:
        """(B, S, ...) to (T, ...)."""
        return _gather(padded, self.token_index)

    def pad(self, packed: Tensor) -> Tensor:
        """(T, ...) to (B, S, ...), zero at every position that is not computed or not visible."""
        return _spread(packed, self.token_index, self.visible, self.shape)

    def finish(self, states: Tensor, pooled: bool) -> tuple[Tensor, Tensor | None]:
        """What the last layer leaves, (T, D), or (K, D) of the tokens in `kept`.

        Returns:
            (B, S, D), as `pad`, and, where `pooled`, the states (R, D) at position 0.
        """
        index, visible, first = self.token_index, self.visible, self.first_token
        if self.kept is not None:
            index = self.kept if index is None else index[self.kept]
            visible = None if visible is None else visible[self.kept]
            first = None if first is None else torch.searchsorted(self.kept, first)
        padded = _spread(states, index, visible, self.shape)
        if not pooled:
            return padded, None
        if first is None:
            return padded, states[:: self.grid[1]].contiguous()
        return padded, states.index_select(0, first)

    def refill(self, padded: Tensor, packed: Tensor) -> Tensor:
        """(T, ...) out of `padded`, so that gradients pass through it; hidden ones of `packed`."""
        fresh = self.unpad(padded)
        return fresh if self.visible is None else torch.where(self.visible[:, None], fresh, packed)

    def to_grid(self, packed: Tensor) -> Tensor:
        """(T, ...) to (R, L, ...), zero at every position that is not computed."""
        return scatter(packed, self.grid_index, self.grid)

    def from_grid(self, padded: Tensor) -> Tensor:
        """(R, L, ...) to (T, ...)."""
        return _gather(padded, self.grid_index)

    @cached_property
    def grid_index(self) -> Tensor | None:
        """(T,) flat position of each computed token in the grid; None where T is all of it."""
        if not self.order:
            return self.token_index
        starts = [row * self.grid[1] for row in self.order]
        return _ranges(starts, [queries for queries, _ in self._lengths()]).to(self.device)

    def attended_grid(self) -> Tensor:
        """(R, L) bool: the mask of sequences that came packed."""
        lengths = [0] * len(self.order)
        for row, (_, keys) in zip(self.order, self._lengths(), strict=True):
            lengths[row] = keys
        ends = torch.tensor(lengths, device=self.device)[:, None]
        return torch.arange(self.grid[1], device=self.device) < ends

    def _lengths(self) -> list[tuple[int, int]]:
        """Queries and keys of each sequence that has any, in packed order."""
        return [(queries, keys) for rows, queries, keys in self.groups for _ in range(rows)]

    @cached_property
    def key_index(self) -> Tensor | None:
        """(keys of all sequences,) where the attended tokens lie; None when all T are attended."""
        lengths = self._lengths()
        if all(queries == keys for queries, keys in lengths):
            return None
        starts = _starts([queries for queries, _ in lengths])
        return _ranges(starts, [keys for _, keys in lengths]).to(self.device)

    @cached_property
    def cumulative_lengths(self) -> tuple[Tensor, Tensor, int, int]:
        """Running totals (R' + 1,) int32 of queries and of keys, and the longest of each.

        What variable-length attention kernels take. R' leaves out sequences without tokens.
        """
        queries, keys = zip(*self._lengths(), strict=True)
        totals = torch.tensor([[0, *queries], [0, *keys]], dtype=torch.int32, device="cpu")
        totals = totals.cumsum(dim=1, dtype=torch.int32)
        totals = totals.to(self.device, non_blocking=True)
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
    batch_size, length = attended.shape
    device = attended.device
    # One transfer for both: on an accelerator this line waits for the device.
    keys, firsts = torch.stack((attended.sum(dim=1), attended[:, 0].long())).tolist()
    visible = attended if required is None else attended | required
    is_whole = min(keys) == length if required is None else bool(visible.all())
    if is_whole and not only_required:
        return None
    computed = visible
    if first_token and not all(firsts):
        computed = computed.clone()
        computed[:, 0] = True
    if whole_if_empty and not all(keys):
        computed = computed | ~attended.any(dim=1, keepdim=True)
    queries = keys if computed is attended else computed.sum(dim=1).tolist()

    order = sorted(range(batch_size), key=lambda row: (queries[row], keys[row]))
    lengths = [(queries[row], keys[row]) for row in order]
    rows = torch.tensor(order, device=device)  # (B,)
    is_visible = None
    if queries == keys:
        places, column = computed[rows].nonzero(as_tuple=True)
        token_index = rows[places] * length + column
    else:
        # Within a row attended tokens come first, so that a row's keys are a prefix of it.
        rank = (~attended).to(torch.int8) + (~computed).to(torch.int8)  # 0 attended, 1 query, 2 out
        columns = torch.argsort(rank[rows], dim=1, stable=True)  # (B, S)
        ends = torch.tensor([q for q, _ in lengths], device=device)[:, None]
        chosen = torch.arange(length, device=device) < ends
        column = columns[chosen]
        token_index = (rows[:, None] * length + columns)[chosen]
        is_visible = visible.flatten()[token_index]

    first = None
    if first_token:
        # Column 0 is the row's first key, or the first of its queries that are not attended.
        starts = _starts([q for q, _ in lengths])
        offsets = [0 if firsts[row] else keys[row] for row in order]
        places_of_first = [start + offset for start, offset in zip(starts, offsets, strict=True)]
        first = torch.tensor(_in_caller_order(order, places_of_first), device=device)
    packing = Packing(
        shape := (batch_size, length),
        shape,
        _groups(lengths),
        device,
        token_index,
        column,
        visible=is_visible,
        first_token=first,
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
    if len(lengths) == 1:
        return plan_dense(1, lengths[0], device, required, first_token, only_required)
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    ordered = [lengths[row] for row in order]
    starts = _starts(lengths)
    index = None
    if ordered != lengths:
        index = _ranges([starts[row] for row in order], ordered).to(device)
    first = None
    if first_token:
        first = torch.tensor(_in_caller_order(order, _starts(ordered)), device=device)
    packing = Packing(
        (1, sum(lengths)),
        (len(lengths), ordered[-1]),
        _groups([(length, length) for length in ordered]),
        device,
        index,
        _ranges([0] * len(ordered), ordered).to(device),
        tuple(order),
        first_token=first,
    )
    return _keep(packing, required) if only_required else packing


def plan_dense(
    batch_size: int,
    sequence_length: int,
    device: torch.device,
    required: Tensor | None = None,
    first_token: bool = False,
    only_required: bool = False,
) -> Packing:
    """The packing of a batch without padding: every token, in place.

    Args:
        batch_size: B.
        sequence_length: S.
        device: Where the tokens are.
        required: (B, S) bool, as in `plan_packing`.
        first_token: As in `plan_packing`.
        only_required: As in `plan_packing`.
    """
    group = RowGroup(batch_size, sequence_length, sequence_length)
    shape = (batch_size, sequence_length)
    if not only_required:
        return Packing(shape, shape, (group,), device)
    first = None
    if first_token:
        tokens = batch_size * sequence_length
        first = torch.arange(0, tokens, sequence_length, device=device)
    return _keep(Packing(shape, shape, (group,), device, first_token=first), required)


def _keep(packing: Packing, required: Tensor | None) -> Packing:
    """Marks the required tokens, and position 0 where it is wanted, as all that is read."""
    first = packing.first_token
    if required is None and first is not None:
        # Without an index the sequences are in order, and so are their first tokens.
        kept = first if packing.token_index is None else first.sort().values
        return replace(packing, kept=kept)
    wanted = torch.zeros(packing.tokens, dtype=torch.bool, device=packing.device)
    if required is not None:
        wanted |= packing.unpad(required)
    if first is not None:
        wanted[first] = True
    return replace(packing, kept=wanted.nonzero().flatten())


def _groups(lengths: list[tuple[int, int]]) -> tuple[RowGroup, ...]:
    """Runs of equal (queries, keys) in the packed order; empty rows have no run."""
    return tuple(
        RowGroup(rows=len(list(same)), queries=q, keys=k) for (q, k), same in groupby(lengths) if q
    )


def _starts(lengths: Iterable[int]) -> list[int]:
    """Lengths to where each begins when laid end to end."""
    return list(accumulate(lengths, initial=0))[:-1]


def _ranges(starts: Sequence[int], lengths: Sequence[int]) -> Tensor:
    """(sum of lengths,) on the CPU: from each start so many numbers on, one after the other.

    In plain Python: torch's `repeat_interleave` wakes all threads, for a dozen numbers too.
    """
    ends = map(int.__add__, starts, lengths)
    numbers = array("q", chain.from_iterable(map(range, starts, ends)))
    return torch.frombuffer(numbers, dtype=torch.int64)


def _in_caller_order(order: list[int], values: list[int]) -> list[int]:
    """Values of the ordered rows in the order in which the caller has the rows."""
    return [value for _, value in sorted(zip(order, values, strict=True))]


def is_traced(device: torch.device) -> bool:
    """Whether this call is recorded as a program: no shape in it may depend on a mask's values."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or device.type == "meta"


def scatter(packed: Tensor, index: Tensor | None, shape: tuple[int, int]) -> Tensor:
    """(T, ...) to (*shape, ...), each at its flat position in `index` (T,), zero elsewhere.

    Without an index they are all positions in turn.
    """
    if index is None:
        return packed.unflatten(0, shape)
    padded = packed.new_zeros((shape[0] * shape[1], *packed.shape[1:]))
    return padded.index_copy_(0, index, packed).unflatten(0, shape)


def _spread(
    packed: Tensor, index: Tensor | None, visible: Tensor | None, shape: tuple[int, int]
) -> Tensor:
    """As `scatter`, and zero where `visible` (T,) is False."""
    if visible is not None:
        packed = packed.masked_fill(~visible[:, None], 0)
    return scatter(packed, index, shape)


def _gather(padded: Tensor, index: Tensor | None) -> Tensor:
    """(B, S, ...) to the (T, ...) at these flat positions, or to all of them."""
    flat = padded.flatten(0, 1)
    return flat if index is None else flat.index_select(0, index)
