"""Packing: which tokens of a batch are computed, in which order, and how sequences lie in it.

Notation: B batch, S sequence, T computed tokens of the whole batch, R sequences, L the longest of
them, `...` any trailing shape.

A batch is unpadded once before the embeddings, and a head pads its scores once; in between
everything runs on `(T, hidden)`. Sequences are ordered by length, so that those of one length lie
side by side and attention over them is a view of the packed tensor, not a copy (the idea of packing
is that of flash-attention's BERT, https://github.com/Dao-AILab/flash-attention; the ordering is for
backends that take equal lengths only).

Input may come packed as well: several sequences end to end in one row, none of which sees another.
What says so is `cu_seq_lens_q`, or positions that start again at 0. `plan_packed_input` lays such
sequences out by their lengths. Decoders, and programs that are recorded (compiled, traced,
exported), keep the row and get a mask.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate, chain, groupby, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


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
        if self.visible is not None:
            packed = packed.masked_fill(~self.visible[:, None], 0)
        return scatter(packed, self.token_index, self.shape)

    def finish(self, states: Tensor, pooled: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """What the caller reads of the last layer's states, (T, D), or (K, D) of those in `kept`.

        Returns:
            The visible states (N, D) and their flat positions (N,), or (B, S, D) and None where
            they are all, in the caller's order. Where `pooled`, the states (R, D) at position 0.
        """
        index, visible, first = self.token_index, self.visible, self.first_token
        if self.kept is not None:
            index = self.kept if index is None else index[self.kept]
            visible = None if visible is None else visible[self.kept]
            first = None if first is None else torch.searchsorted(self.kept, first)
        of_first = None
        if pooled:
            every = self.grid[1]
            of_first = (
                states[::every].contiguous() if first is None else states.index_select(0, first)
            )
        if index is None:
            return states.unflatten(0, self.shape), None, of_first
        if visible is not None:
            states, index = states[visible], index[visible]
        return states, index, of_first

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


def plan(
    shape: tuple[int, int],
    device: torch.device,
    attention_mask: Tensor | None,
    lengths: list[int] | None,
    required: Tensor | None,
    first_token: bool,
    only_required: bool,
    whole_if_empty: bool,
) -> tuple[Packing | None, Tensor | None]:
    """Decides which tokens of a batch are computed.

    Args:
        shape: (B, S).
        device: Where the tokens are.
        attention_mask: (B, S), zero at padding; None where nothing is left out.
        lengths: Of the sequences, where the input came packed.
        required: As in `plan_packing`, and so are the next three.

    Returns:
        The packing, or None where all is computed; and the mask, or None where the computation has
        no need of one.
    """
    if required is not None:
        required = required.to(device)
    if lengths is not None:
        return plan_packed_input(lengths, device, required, first_token, only_required), None
    if attention_mask is None:
        dense = plan_dense(*shape, device, required, first_token, True) if only_required else None
        return dense, None
    attended = attention_mask.to(device) != 0
    packing = plan_packing(attended, required, first_token, only_required, whole_if_empty)
    is_whole = packing is None and (required is None or bool(attended.all()))
    return packing, None if is_whole else attention_mask


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
        if computed is not visible:
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

    Without an index they are all positions, in turn.
    """
    if index is None:
        return packed.unflatten(0, shape)
    padded = packed.new_zeros((shape[0] * shape[1], *packed.shape[1:]))
    return padded.index_copy_(0, index, packed).unflatten(0, shape)


def _gather(padded: Tensor, index: Tensor | None) -> Tensor:
    """(B, S, ...) to the (T, ...) at these flat positions, or to all of them."""
    flat = padded.flatten(0, 1)
    return flat if index is None else flat.index_select(0, index)


_TOTALS_DO_NOT_FIT = (
    "cu_seq_lens_q={} does not fit input of shape {}; packed input is one row, and its totals are "
    "whole numbers that rise from 0 to its length"
)
#: A program's message cannot name what is given: even the shape may be a symbol in it.
_PROGRAMS_TOTALS_DO_NOT_FIT = _TOTALS_DO_NOT_FIT.format("as given", "(1, S)")
_MASK_BESIDE_TOTALS = (
    "cu_seq_lens_q comes with an attention_mask that {}; packed input holds no padding: leave the "
    "mask out, and padding too"
)
_MANY_ROWS = (
    "position_ids start again at 0 within a row of a batch of {}; packed input is one row: lay "
    "them end to end in one, or, if each row is one sequence, say what a token sees by an "
    "attention_mask of shape (batch, sequence, sequence)"
)
_PROGRAMS_MANY_ROWS = _MANY_ROWS.format("several")


def packed_lengths(
    shape: tuple[int, ...],
    position_ids: Tensor | None,
    attention_mask: Tensor | None,
    cumulative_lengths: Tensor | None,
) -> list[int] | None:
    """Lengths of the sequences in input that came packed; None where it did not.

    It did if `cumulative_lengths` (transformers' `cu_seq_lens_q`) says so, or if the positions of a
    batch of one are runs 0, 1, 2, … starting again at 0. Positions that are all 0 are none, and
    beside a mask that leaves something out positions are only positions.

    Args:
        shape: (B, S) of the input; () where it is wrong and will be reported.
        position_ids: (B, S), (1, S) or (S,), or None.
        attention_mask: The caller's, or None.
        cumulative_lengths: (R + 1,) or None.

    Raises:
        ValueError: `cumulative_lengths` does not run from 0 to S in steps above 0, there is more
            than one row, or a mask that leaves something out comes with it.
    """
    if not shape:
        return None
    if cumulative_lengths is not None:
        _check_totals(shape, attention_mask, cumulative_lengths)
        if attention_mask is not None and not bool((attention_mask != 0).all()):
            raise ValueError(_MASK_BESIDE_TOTALS.format("has zeros"))
        totals = cumulative_lengths.tolist()
        lengths = [b - a for a, b in pairwise(totals)]
        if totals[0] != 0 or totals[-1] != shape[1] or min(lengths) < 1:
            raise ValueError(_TOTALS_DO_NOT_FIT.format(totals, tuple(shape)))
        return lengths
    if position_ids is None or not _says_nothing(attention_mask):
        return None
    if position_ids.ndim not in (1, 2) or position_ids.shape[-1] != shape[1]:
        return None  # reported later
    positions = position_ids.reshape(-1, shape[1])
    # The first is the usual answer, and soon had.
    if not bool((positions[:, 1:] == 0).any()) or not bool(_restarts(positions).any()):
        return None
    if attention_mask is not None and not bool((attention_mask != 0).all()):
        return None
    if shape[0] > 1:
        raise ValueError(_MANY_ROWS.format(shape[0]))
    starts = (positions[0] == 0).nonzero().flatten().tolist()
    return [b - a for a, b in pairwise([*starts, shape[1]])]


def count_sequences(
    shape: tuple[int, ...],
    position_ids: Tensor | None,
    attention_mask: Tensor | None,
    cumulative_lengths: Tensor | None,
) -> tuple[int, ...]:
    """(R,), how many pooled vectors a batch of this shape gives.

    () where that is unknown: for the shape (), and for a recorded program that goes by positions.
    """
    given = position_ids if cumulative_lengths is None else cumulative_lengths
    if not shape or given is None:
        return shape[:1]
    if not is_traced(given.device):
        lengths = packed_lengths(shape, position_ids, attention_mask, cumulative_lengths)
        return shape[:1] if lengths is None else (len(lengths),)
    if cumulative_lengths is not None:
        return (cumulative_lengths.shape[0] - 1,)
    return () if shape[0] == 1 and _says_nothing(attention_mask) else shape[:1]


def _check_totals(
    shape: tuple[int, ...], attention_mask: Tensor | None, cumulative_lengths: Tensor
) -> None:
    """What can be told of `cu_seq_lens_q` without looking at values.

    Raises:
        ValueError: It is no row of whole numbers, the batch is not one row, or there is a mask
            between queries and keys.
    """
    is_row = cumulative_lengths.ndim == 1 and cumulative_lengths.shape[0] > 1
    if not is_row or cumulative_lengths.is_floating_point() or shape[0] != 1:
        given = f"of shape {tuple(cumulative_lengths.shape)} and {cumulative_lengths.dtype}"
        raise ValueError(_TOTALS_DO_NOT_FIT.format(given, tuple(shape)))
    if attention_mask is not None and attention_mask.ndim != 2:
        raise ValueError(_MASK_BESIDE_TOTALS.format(f"has {attention_mask.ndim} dimensions"))


@dataclass(frozen=True)
class Sequences:
    """Input that came packed, as tensors, for where it stays (1, S): decoders, and programs that
    are recorded, whose shapes cannot depend on lengths.
    """

    #: (1, S) the number of each token's sequence from 1; 0 where the input turned out not packed.
    number: Tensor
    #: (R,) where each begins; None where nobody asks.
    first: Tensor | None
    #: (1, S) in its sequence; None where the caller's are as good.
    position: Tensor | None = None

    @classmethod
    def of_totals(cls, totals: Tensor, length: int, device: torch.device) -> "Sequences":
        """By `cu_seq_lens_q`, (R + 1,), of S tokens."""
        totals = totals.to(device, torch.long)
        index = torch.arange(length, device=device)
        if torch.compiler.is_dynamo_compiling():
            steps = totals.diff()
            holds = (totals[0] == 0) & (totals[-1] == length) & (steps > 0).all()
            torch._assert_async(holds, _PROGRAMS_TOTALS_DO_NOT_FIT)
        number = (index[:, None] >= totals[None, 1:-1]).sum(dim=1)  # (S,) from 0
        return cls(number[None] + 1, totals[:-1], (index - totals[number])[None])

    @classmethod
    def of_positions(
        cls, position_ids: Tensor, attention_mask: Tensor | None, pooled: bool
    ) -> "Sequences":
        """By the positions of one row, (1, S), where they are runs that start again at 0.

        Args:
            attention_mask: (1, S); one with zeros makes positions mere positions.
            pooled: Whether it is asked for where they begin: how many there are is then a number
                that the program finds out. Without values ("meta") it is taken for one.
        """
        is_packed = _restarts(position_ids)  # (1,)
        if attention_mask is not None:
            is_packed = is_packed & (attention_mask != 0).all(dim=1).to(is_packed.device)
        is_start = (position_ids == 0) & is_packed[:, None]
        number = is_start.cumsum(dim=1)
        first = None
        if pooled and position_ids.device.type != "meta":
            begins = nn.functional.pad(is_start[0, 1:], (1, 0), value=True)
            first = begins.nonzero()[:, 0]
        return cls(number, first)

    @property
    def is_packed(self) -> Tensor:
        """(1, 1) bool: whether it did come packed, which only a program's positions leave open."""
        return self.number[:, -1:] > 0


def find_sequences(
    shape: tuple[int, ...],
    position_ids: Tensor | None,
    attention_mask: Tensor | None,
    options: dict[str, Any],
    device: torch.device,
    is_decoder: bool,
    has_pooler: bool,
    has_cache: bool,
) -> tuple[list[int] | None, Sequences | None]:
    """How the input of a call came packed, if it did.

    Args:
        shape: As in `packed_lengths`, and so are the next two.
        options: Further arguments of the call; those that say how input is packed are taken out
            where no backend is to read them.
        device: The model's.
        is_decoder: Whether a token sees only those before it.
        has_pooler: Whether it is asked for where the sequences begin.
        has_cache: Whether there are `past_key_values`.

    Returns:
        Lengths, unless a program is recorded, which does not know them; and the sequences as
        tensors for such a program or for a decoder. None and None for other input.

    Raises:
        ValueError: As `packed_lengths`, or there is a cache.
    """
    totals = options.get("cu_seq_lens_q")
    if totals is None and options.get("cu_seq_lens_k") is not None:
        raise ValueError("cu_seq_lens_k is given without cu_seq_lens_q; give both, or the latter")
    if not shape:
        return None, None
    lengths = None
    if not is_traced(device):
        lengths = packed_lengths(shape, position_ids, attention_mask, totals)
        if lengths is None:
            return None, None
    if has_cache and (totals is not None or lengths is not None):
        raise ValueError(
            "packed input (cu_seq_lens_q, or position_ids that start again at 0) comes with "
            "past_key_values, which hold one sequence a row; leave them out"
        )
    if lengths is not None and not is_decoder:
        for name in ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"):
            options.pop(name, None)
        return lengths, None
    if totals is not None:
        _check_totals(shape, attention_mask, totals)
        # Flash attention goes by all four or by none.
        options.setdefault("cu_seq_lens_k", totals)
        options.setdefault("max_length_q", shape[1])
        options.setdefault("max_length_k", shape[1])
        return lengths, Sequences.of_totals(totals, shape[1], device)
    if lengths is not None:
        ends = torch.tensor([0, *lengths], device="cpu").cumsum(0)
        return lengths, Sequences.of_totals(ends, shape[1], device)
    fits = position_ids is not None and position_ids.shape[-1] == shape[1]
    if position_ids is None or not fits or has_cache or not _says_nothing(attention_mask):
        return None, None
    if shape[0] != 1:
        _check_rows(position_ids, attention_mask)
        return None, None
    return None, Sequences.of_positions(position_ids.reshape(1, -1), attention_mask, has_pooler)


def _check_rows(position_ids: Tensor, attention_mask: Tensor | None) -> None:
    """Has a compiled program of several rows fail where one of them came packed."""
    if not torch.compiler.is_dynamo_compiling() or not _says_nothing(attention_mask):
        return
    is_packed = _restarts(position_ids.reshape(-1, position_ids.shape[-1])).any()
    if attention_mask is not None:
        is_packed = is_packed & (attention_mask != 0).all().to(is_packed.device)
    torch._assert_async(~is_packed, _PROGRAMS_MANY_ROWS)


def _says_nothing(attention_mask: Tensor | None) -> bool:
    """Whether a mask may leave nothing out, by its shape: one between queries and keys decides."""
    return attention_mask is None or attention_mask.ndim == 2


def _restarts(position_ids: Tensor) -> Tensor:
    """(N, S) to (N,) bool: rows that are runs 0, 1, 2, … starting again at 0, not all of one token.

    All positions 0 is what someone gives who wants none.
    """
    before, after = position_ids[:, :-1], position_ids[:, 1:]
    is_start = after == 0
    runs = (position_ids[:, 0] == 0) & (is_start | (after == before + 1)).all(dim=1)
    return runs & is_start.any(dim=1) & (position_ids != 0).any(dim=1)
