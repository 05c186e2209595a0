"""Packing: which tokens of a batch are computed, in which order, and how sequences lie in it.

Notation: B batch, S sequence, T computed tokens of the whole batch, R sequences, L the longest of
them, `...` any trailing shape.

A batch is unpadded once, before the embeddings, and a head pads its scores once. In between
everything runs on `(T, hidden)`. Sequences are ordered by length, so that those of one length lie
side by side: attention over them is then a view of the packed tensor, not a copy. (Packing is the
idea of flash-attention's BERT, https://github.com/Dao-AILab/flash-attention. The order is for
backends that take only sequences of equal length.)

A batch may also come packed: several sequences end to end in one row, none of which sees another.
`cu_seq_lens_q` says so, or positions that start again at 0. `plan` lays such sequences out by their
lengths. Decoders, padded calls (`route.py`) and programs that are recorded (compiled, traced,
exported) keep the row and get a mask.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate, chain, groupby, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


@dataclass
class Inputs:
    """The batch of a call, by the arguments of `BertModel.forward`."""

    input_ids: Tensor | None
    attention_mask: Tensor | None
    token_type_ids: Tensor | None
    position_ids: Tensor | None
    inputs_embeds: Tensor | None

    @property
    def source(self) -> Any:
        """The ids, or the embeddings in their place; None if there is neither."""
        return self.inputs_embeds if self.input_ids is None else self.input_ids

    @property
    def shape(self) -> tuple[int, ...]:
        """(B, S); () if the input has none, which `BertModel.forward` then reports."""
        source, axes = self.source, 3 if self.input_ids is None else 2
        is_batch = source is not None and source.ndim == axes and source.numel()
        return tuple(source.shape[:2]) if is_batch else ()

    @property
    def device(self) -> torch.device:
        """Where the batch is. A module in place of the embeddings may have no weight to tell it."""
        return getattr(self.source, "device", torch.device("cpu"))

    def is_traced(self, *others: Any) -> bool:
        """Whether the values of the batch, or of `others`, may not decide a shape."""
        given = (self.source, self.attention_mask, self.token_type_ids, self.position_ids)
        return is_traced(self.device, *given, *others)

    def count_sequences(self, cu_seq_lens_q: Tensor | None) -> tuple[int, ...]:
        """(R,), how many pooled vectors they give.

        () if that is unknown: for the shape (), and for a recorded program that goes by positions.
        """
        shape, positions = self.shape, self.position_ids
        given = positions if cu_seq_lens_q is None else cu_seq_lens_q
        if not shape or given is None:
            return shape[:1]
        mask = key_mask(self.attention_mask, shape[0])
        if not is_traced(given.device, given, mask):
            lengths = packed_lengths(shape, positions, mask, cu_seq_lens_q)
            return shape[:1] if lengths is None else (len(lengths),)
        if cu_seq_lens_q is not None:
            return (cu_seq_lens_q.shape[0] - 1,)
        may_be_packed = shape[0] == 1 and _telling_positions(shape, positions, mask) is not None
        return () if may_be_packed else shape[:1]


class RowGroup(NamedTuple):
    """Neighbouring sequences of equal length in the packed order."""

    rows: int
    #: Computed tokens a row. The first `keys` of them are attended.
    queries: int
    #: Attended tokens a row, which its queries look at. If there are none, the queries look at
    #: nothing. "eager" has no softmax over nothing: there they look at the whole row alike.
    keys: int


@dataclass(frozen=True)
class Wanted:
    """Which hidden states are read after the last layer, beside those of attended tokens.

    Unless nothing but required ones are read, those of masked-out tokens that are not the pad token
    are read as well: someone put them there. ColBERT's queries are the best known case: they end
    in [MASK] tokens which no token attends to, and whose states are scored.
    """

    #: (B, S) bool: positions that are read although the mask does not attend to them.
    required: Tensor | None = None
    #: Whether position 0 of every sequence is read, attended or not.
    first_token: bool = False
    #: Whether nothing else is read: not even attended tokens.
    only_required: bool = False
    #: (B, S), not zero where a token is not the pad token (`not_padding`). None if nobody reads
    #: tokens that are masked out, or if there are none.
    not_padding: Tensor | None = None

    def positions(self, attention_mask: Tensor) -> Tensor | None:
        """(B, S) bool: what is read, or None if that is what the mask, (B, S), attends to.

        Attended tokens count in any case.
        """
        if self.not_padding is not None:
            found = torch.logical_or(attention_mask, self.not_padding)
            return found if self.required is None else found | self.required
        return None if self.required is None else self.required | (attention_mask != 0)


#: Nothing but attended tokens.
ATTENDED = Wanted()


@dataclass(frozen=True)
class Packing:
    """The computed tokens of a batch.

    A token is computed when the mask attends to it, or when someone can want its hidden state all
    the same (see `Wanted`): it is not the pad token, or the pooler reads position 0, or a loss
    reads a labelled position. Tokens that are not attended are queries, not keys: nothing attends
    to them, as upstream's mask has it.

    The caller's tensors are (B, S). Sequences are the rows of the batch, or, in input that came
    packed, stretches of its only row; as a padded batch of their own they are (R, L).
    """

    #: (B, S) of the caller's tensors.
    shape: tuple[int, int]
    #: (R, L) of the padded batch of sequences; (B, S) unless the input came packed.
    grid: tuple[int, int]
    #: Runs of equal length, in packed order.
    groups: tuple[RowGroup, ...]
    #: Where the tensors below are.
    device: torch.device
    #: (T,) flat position `row * S + column` of each computed token in the caller's tensors; None
    #: if all positions are computed, in the caller's order.
    token_index: Tensor | None = None
    #: (T,) the place of each computed token in its sequence; None if it is the column.
    column: Tensor | None = None
    #: The number of each sequence, in packed order; empty unless the input came packed.
    order: tuple[int, ...] = ()
    #: (T,) whether the hidden state goes into the padded output; None if all do.
    visible: Tensor | None = None
    #: (R,) where each sequence's position 0 lies in the packed order; None if nobody asks, or if
    #: it is column 0 of a batch that is read as a whole.
    first_token: Tensor | None = None
    #: (K,) tokens whose state the caller reads after the last layer; None for all.
    kept: Tensor | None = None
    #: Whether a sequence must get the same bits whatever the others are.
    batch_invariant: bool = False

    @classmethod
    def dense(
        cls, shape: tuple[int, int], device: torch.device, first_token: bool = False
    ) -> "Packing":
        """Every token of a batch without padding, in place."""
        rows, length = shape
        first = torch.arange(0, rows * length, length, device=device) if first_token else None
        return cls(shape, shape, (RowGroup(rows, length, length),), device, first_token=first)

    @cached_property
    def single_groups(self) -> tuple[RowGroup, ...]:
        """Each sequence as a group of its own."""
        return tuple(group._replace(rows=1) for group in self.groups for _ in range(group.rows))

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

    def finish(self, states: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """What the caller reads of the last layer's states, (T, D), or (K, D) of those in `kept`.

        Returns:
            The visible states (N, D) and their flat positions (N,), or (B, S, D) and None if
            they are all, in the caller's order; the states (R, D) of `first_token`, or None.
        """
        index, visible, first = self.token_index, self.visible, self.first_token
        if self.kept is not None:
            index = self.kept if index is None else index[self.kept]
            visible = None if visible is None else visible[self.kept]
            first = None if first is None else torch.searchsorted(self.kept, first)
        of_first = None if first is None else states.index_select(0, first)
        if index is None:
            return states.unflatten(0, self.shape), None, of_first
        if visible is not None:
            states, index = states[visible], index[visible]
        return states, index, of_first

    def refill(self, padded: Tensor, packed: Tensor) -> Tensor:
        """(T, ...) read back from `padded`, so that gradients pass through it.

        What `padded` does not hold, since it is not visible, comes from `packed`.
        """
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
        """(T,) flat position of each computed token in the grid; None if T is all of it."""
        if not self.order:
            return self.token_index
        starts = [row * self.grid[1] for row in self.order]
        return _ranges(starts, [queries for queries, _ in self._lengths()]).to(self.device)

    def computed_grid(self) -> Tensor:
        """(R, L) bool: where tokens are computed. In input that came packed all are attended."""
        return self.to_grid(torch.ones(self.tokens, dtype=torch.bool, device=self.device))

    def _lengths(self) -> list[tuple[int, int]]:
        """Queries and keys of each sequence that has any, in packed order."""
        return [(queries, keys) for rows, queries, keys in self.groups for _ in range(rows)]

    @cached_property
    def key_index(self) -> Tensor | None:
        """(keys of all sequences,) where the attended tokens lie; None if all T are attended."""
        lengths = self._lengths()
        if all(queries == keys for queries, keys in lengths):
            return None
        starts = _starts([queries for queries, _ in lengths])
        return _ranges(starts, [keys for _, keys in lengths]).to(self.device)

    @cached_property
    def cumulative_lengths(self) -> tuple[Tensor, Tensor, int, int]:
        """Running totals (R' + 1,) int32 of queries and of keys, and the longest of each.

        Kernels for sequences of different lengths take them. R' leaves out sequences without
        tokens.
        """
        queries, keys = zip(*self._lengths(), strict=True)
        totals = torch.tensor([[0, *queries], [0, *keys]], dtype=torch.int32, device="cpu")
        totals = totals.cumsum(dim=1, dtype=torch.int32)
        totals = totals.to(self.device, non_blocking=True)
        return totals[0], totals[1], max(queries), max(keys)


def plan(
    shape: tuple[int, int],
    device: torch.device,
    attention_mask: Tensor | None = None,
    lengths: list[int] | None = None,
    wanted: Wanted = ATTENDED,
    whole_if_empty: bool = False,
    packs_whole: bool = False,
) -> tuple[Packing | None, Tensor | None]:
    """Decides which tokens of a batch are computed.

    Args:
        shape: (B, S).
        device: Where the tokens are.
        attention_mask: (B, S), zero at padding; None if nothing is left out.
        lengths: Tokens of each sequence, if the input came packed; B is 1 and their sum is S.
        wanted: Which hidden states are read.
        whole_if_empty: Whether a row that attends to nothing is computed as a whole, since its
            queries look at all of it alike.
        packs_whole: Whether there must be a packing, not a mask, where every hidden state is wanted
            but not every token attended.

    Returns:
        The packing, or None if every hidden state is wanted and nothing is gained; and the mask,
        or None if the computation does not need one.
    """
    if wanted.required is not None:
        wanted = replace(wanted, required=wanted.required.to(device))
    packing, mask = None, None
    if lengths is not None:
        packing = _plan_sequences(lengths, device, wanted.first_token)
    elif attention_mask is not None:
        mask = attention_mask.to(device)
        packing, mask = _plan_rows(mask, wanted, whole_if_empty, packs_whole)
    elif wanted.only_required:
        packing = Packing.dense(shape, device, wanted.first_token)
    if packing is not None and wanted.only_required:
        packing = _keep(packing, wanted.required)
    return packing, mask


def _plan_rows(
    mask: Tensor, wanted: Wanted, whole_if_empty: bool, packs_whole: bool
) -> tuple[Packing | None, Tensor | None]:
    """What `plan` gives for a padded batch with this mask, (B, S); other arguments as there."""
    shape = batch_size, length = mask.shape[0], mask.shape[1]
    attended, visible = mask != 0, wanted.positions(mask)
    counts = torch.stack((attended,) if visible is None else (attended, visible)).sum(dim=2)
    if wanted.first_token:
        counts = torch.cat((counts, attended[None, :, 0]))
    # One transfer for all: on an accelerator this line waits for the device.
    rows_of_counts = counts.tolist()
    firsts = rows_of_counts.pop() if wanted.first_token else [True] * batch_size
    keys, queries = rows_of_counts[0], rows_of_counts[-1]
    is_attended = min(keys) == length
    if min(queries) == length and not wanted.only_required and (is_attended or not packs_whole):
        return None, None if is_attended else mask
    if visible is None or queries == keys:
        visible = attended
    computed = visible
    if wanted.first_token and not all(firsts):
        computed = computed.clone()
        computed[:, 0] = True
    if whole_if_empty and not all(keys):
        computed = computed | ~attended.any(dim=1, keepdim=True)
    if computed is not visible:
        queries = computed.sum(dim=1).tolist()
    order = sorted(range(batch_size), key=lambda row: (queries[row], keys[row]))
    rows = torch.tensor(order, device=attended.device)  # (B,)
    places, column = computed.index_select(0, rows).nonzero(as_tuple=True)  # (T,)
    token_index = rows.index_select(0, places) * length + column
    if queries != keys:
        # Within a row attended tokens come first, so that a row's keys are a prefix of it.
        rank = places * 2 + ~attended.flatten().index_select(0, token_index)
        by_rank = rank.argsort(stable=True)
        token_index, column = token_index[by_rank], column[by_rank]
    first = None
    if wanted.first_token:
        # Column 0 is the row's first key, or the first of its queries that are no keys.
        starts = zip(_places(order, queries), firsts, keys, strict=True)
        first = torch.tensor(
            [start if is_key else start + count for start, is_key, count in starts],
            device=attended.device,
        )
    packing = Packing(
        shape,
        shape,
        _groups([(queries[row], keys[row]) for row in order]),
        attended.device,
        token_index,
        column,
        visible=None if computed is visible else visible.flatten()[token_index],
        first_token=first,
    )
    return packing, mask


def not_padding(inputs: Inputs, pad_token_id: int | None, word_embeddings: Any) -> Tensor:
    """(B, S), of any type: not zero where a token is not the pad token.

    Embeddings are the pad token's if they are its row of the table. Where that cannot be told, no
    token is the pad token.

    Args:
        inputs: The batch.
        pad_token_id: None if no token is it.
        word_embeddings: The table; a module.
    """
    if inputs.input_ids is not None and pad_token_id is not None:
        # No operator for the usual id.
        return inputs.input_ids if pad_token_id == 0 else inputs.input_ids - pad_token_id
    source, table = inputs.source, getattr(word_embeddings, "weight", None)
    if (
        pad_token_id is None
        or not isinstance(table, Tensor)
        or table.device.type == "meta"
        or table.ndim != 2
        or table.shape[1] != source.shape[-1]
        or not -len(table) <= pad_token_id < len(table)
        or torch._C._functorch.is_functorch_wrapped_tensor(source)
        or is_mapped(source)
    ):
        return torch.ones(source.shape[:2], dtype=torch.bool, device=source.device)
    row = table.detach()[pad_token_id].to(source.device)
    return (source.detach() != row).any(dim=-1)


def _plan_sequences(lengths: list[int], device: torch.device, first_token: bool) -> Packing:
    """The packing of a batch of one row that holds sequences of these lengths end to end."""
    if len(lengths) == 1:
        return Packing.dense((1, lengths[0]), device, first_token)
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    ordered = [lengths[row] for row in order]
    starts = _starts(lengths)
    index = None
    if ordered != lengths:
        index = _ranges([starts[row] for row in order], ordered).to(device)
    return Packing(
        (1, sum(lengths)),
        (len(lengths), ordered[-1]),
        _groups([(length, length) for length in ordered]),
        device,
        index,
        _ranges([0] * len(ordered), ordered).to(device),
        tuple(order),
        first_token=torch.tensor(_places(order, lengths), device=device) if first_token else None,
    )


def _keep(packing: Packing, required: Tensor | None) -> Packing:
    """Marks the required tokens, and position 0 if it is wanted, as all that is read."""
    first = packing.first_token
    if required is None and first is not None:
        # Without an index the sequences are in order, and so are their first tokens.
        kept = first if packing.token_index is None else first.sort().values
        return replace(packing, kept=kept)
    is_kept = torch.zeros(packing.tokens, dtype=torch.bool, device=packing.device)
    if required is not None:
        is_kept |= packing.unpad(required)
    if first is not None:
        is_kept[first] = True
    return replace(packing, kept=is_kept.nonzero().flatten())


def _groups(lengths: list[tuple[int, int]]) -> tuple[RowGroup, ...]:
    """Runs of equal (queries, keys) in the packed order; empty rows have no run."""
    return tuple(
        RowGroup(rows=len(list(same)), queries=q, keys=k) for (q, k), same in groupby(lengths) if q
    )


def _starts(lengths: Iterable[int]) -> list[int]:
    """Lengths to where each begins when laid end to end."""
    return list(accumulate(lengths, initial=0))[:-1]


def _places(order: list[int], lengths: list[int]) -> list[int]:
    """Where each sequence begins when they are laid end to end in this order."""
    starts = _starts(lengths[row] for row in order)
    return [start for _, start in sorted(zip(order, starts, strict=True))]


def _ranges(starts: Sequence[int], lengths: Sequence[int]) -> Tensor:
    """(sum of lengths,) on the CPU: from each start as many numbers as its length, end to end.

    It is plain Python, because torch's `repeat_interleave` wakes all threads even for a dozen
    numbers.
    """
    ends = map(int.__add__, starts, lengths)
    numbers = array("q", chain.from_iterable(map(range, starts, ends)))
    return torch.frombuffer(numbers, dtype=torch.int64)


def is_traced(device: torch.device, *tensors: Any) -> bool:
    """Whether no shape of this call may depend on a mask's values.

    So it is if the call is recorded as a program, or if one of `tensors` has no values to read.
    """
    is_program = torch.compiler.is_compiling() or torch.jit.is_tracing() or device.type == "meta"
    return is_program or any(map(is_mapped, tensors))


def is_mapped(tensor: Any) -> bool:
    """Whether `torch.vmap` maps over this tensor, so that it has no values to read."""
    if torch.compiler.is_compiling():  # which cannot trace the question
        return False
    functorch = torch._C._functorch
    while isinstance(tensor, Tensor) and functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return isinstance(tensor, Tensor) and functorch.is_legacy_batchedtensor(tensor)


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


def key_mask(attention_mask: Tensor | None, batch_size: int) -> Tensor | None:
    """(B, K) in place of a mask (B or 1, 1, 1, K) of zeros and ones; other masks as they are."""
    if not isinstance(attention_mask, Tensor):  # None, or flex attention's BlockMask
        return attention_mask
    if attention_mask.ndim != 4 or attention_mask.is_floating_point():
        return attention_mask
    if attention_mask.shape[1] != 1 or attention_mask.shape[2] != 1:
        return attention_mask
    return attention_mask[:, 0, 0].expand(batch_size, -1)


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
    """Lengths of the sequences in input that came packed; None if it did not.

    It did if `cumulative_lengths` (transformers' `cu_seq_lens_q`) says so, or if the positions of a
    batch of one are runs 0, 1, 2, … that start again at 0. If all positions are 0, or if the mask
    leaves something out, the positions say nothing about packing.

    Args:
        shape: (B, S) of the input.
        position_ids: (B, S), (1, S) or (S,), or None.
        attention_mask: The caller's, or None.
        cumulative_lengths: (R + 1,) or None.

    Raises:
        ValueError: `cumulative_lengths` does not run from 0 to S in steps above 0, there is more
            than one row, or a mask that leaves something out comes with it.
    """
    if cumulative_lengths is not None:
        _check_totals(shape, attention_mask, cumulative_lengths)
        if attention_mask is not None and not bool((attention_mask != 0).all()):
            raise ValueError(_MASK_BESIDE_TOTALS.format("has zeros"))
        totals = cumulative_lengths.tolist()
        lengths = [b - a for a, b in pairwise(totals)]
        if totals[0] != 0 or totals[-1] != shape[1] or min(lengths) < 1:
            raise ValueError(_TOTALS_DO_NOT_FIT.format(totals, tuple(shape)))
        return lengths
    positions = _telling_positions(shape, position_ids, attention_mask)
    # The quick look at zeros is enough for most input.
    if positions is None or not bool((positions[:, 1:] == 0).any()):
        return None
    if not bool(_is_packed(positions, attention_mask)):
        return None
    if shape[0] > 1:
        raise ValueError(_MANY_ROWS.format(shape[0]))
    starts = (positions[0] == 0).nonzero().flatten().tolist()
    return [b - a for a, b in pairwise([*starts, shape[1]])]


def _check_totals(
    shape: tuple[int, ...], attention_mask: Tensor | None, cumulative_lengths: Tensor
) -> None:
    """Checks of `cu_seq_lens_q` what can be told without its values.

    Raises:
        ValueError: It is no row of whole numbers, the batch is not one row, or there is a mask
            between queries and keys.
    """
    is_row = cumulative_lengths.ndim == 1 and cumulative_lengths.shape[0] > 1
    if not is_row or cumulative_lengths.is_floating_point() or shape[0] != 1:
        given = f"of shape {tuple(cumulative_lengths.shape)} and {cumulative_lengths.dtype}"
        raise ValueError(_TOTALS_DO_NOT_FIT.format(given, tuple(shape)))
    axes = 2 if attention_mask is None else len(attention_mask.shape)
    if axes != 2:
        raise ValueError(_MASK_BESIDE_TOTALS.format(f"has {axes} dimensions"))


def _telling_positions(
    shape: tuple[int, ...], position_ids: Tensor | None, attention_mask: Tensor | None
) -> Tensor | None:
    """(N, S) positions that may say that the input came packed; None if they cannot.

    They cannot beside a mask between queries and keys, which says what sees what. Positions of a
    wrong shape are reported later.
    """
    if position_ids is None or (attention_mask is not None and len(attention_mask.shape) != 2):
        return None
    if position_ids.ndim not in (1, 2) or position_ids.shape[-1] != shape[1]:
        return None
    return position_ids.reshape(-1, shape[1])


def _is_packed(positions: Tensor, attention_mask: Tensor | None) -> Tensor:
    """() bool: whether a row of (N, S) positions is runs 0, 1, 2, … that start again at 0.

    False if the mask leaves something out. A row of zeros is no packing: it is what someone gives
    who wants no positions.
    """
    before, after = positions[:, :-1], positions[:, 1:]
    is_start = after == 0
    is_runs = (positions[:, 0] == 0) & (is_start | (after == before + 1)).all(dim=1)
    is_packed = (is_runs & is_start.any(dim=1) & (positions != 0).any(dim=1)).any()
    if attention_mask is not None:
        is_packed = is_packed & (attention_mask != 0).all().to(is_packed.device)
    return is_packed


@dataclass(frozen=True)
class Sequences:
    """The sequences of input that came packed and stays one row, (1, S), as tensors.

    It stays one row in decoders, in calls that are computed as transformers does (`route.py`), and
    in programs that are recorded: their shapes cannot depend on lengths.
    """

    #: (1, S) the number of each token's sequence from 1; 0 if the input turns out not packed.
    number: Tensor
    #: (R,) where each begins; None if nobody asks.
    first: Tensor | None
    #: (1, S) in its sequence; None if the caller's positions are the same.
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
        cls, positions: Tensor, attention_mask: Tensor | None, pooled: bool
    ) -> "Sequences":
        """By the positions of one row, (1, S), if they are runs that start again at 0.

        Args:
            attention_mask: (1, S); if it has zeros, the input is not packed.
            pooled: Whether someone asks where they begin. How many there are is then a number that
                the program finds out. Without values ("meta", vmap) there is taken to be one.
        """
        is_start = (positions == 0) & _is_packed(positions, attention_mask)
        number = is_start.cumsum(dim=1)
        first = None
        if pooled and positions.device.type != "meta" and not is_mapped(positions):
            begins = nn.functional.pad(is_start[0, 1:], (1, 0), value=True)
            first = begins.nonzero()[:, 0]
        return cls(number, first)

    @property
    def is_packed(self) -> Tensor:
        """(1, 1) bool: whether it did come packed. A program that goes by positions finds out."""
        return self.number[:, -1:] > 0


def find_sequences(
    inputs: Inputs,
    options: dict[str, Any],
    is_decoder: bool,
    is_padded: bool,
    has_pooler: bool,
    has_cache: bool,
) -> tuple[list[int] | None, Sequences | None]:
    """How the input of a call came packed, if it did.

    Args:
        inputs: The batch; if its shape is wrong, that will be reported.
        options: Further arguments of the call; those that say how input is packed are taken out
            if no backend is to read them.
        is_decoder: Whether a token sees only those before it.
        is_padded: Whether the call is computed as transformers does, so that the row stays one.
        has_pooler: Whether the pooler asks where the sequences begin.
        has_cache: Whether there is a cache.

    Returns:
        The lengths, to unpad by them; or, for a decoder, a padded call and a recorded program,
        which does not know them, the sequences as tensors. None and None if the input is not
        packed.

    Raises:
        ValueError: As `packed_lengths`, or there is a cache.
    """
    shape, device, position_ids = inputs.shape, inputs.device, inputs.position_ids
    attention_mask, totals = inputs.attention_mask, options.get("cu_seq_lens_q")
    if totals is None and options.get("cu_seq_lens_k") is not None:
        raise ValueError("cu_seq_lens_k is given without cu_seq_lens_q; give both, or the latter")
    if not shape:
        return None, None
    if not is_decoder:  # there a 4-D mask replaces causality as well
        attention_mask = key_mask(attention_mask, shape[0])
    lengths = None
    if not inputs.is_traced(totals):
        lengths = packed_lengths(shape, position_ids, attention_mask, totals)
        if lengths is None:
            return None, None
    if has_cache and (totals is not None or lengths is not None):
        raise ValueError(
            "packed input (cu_seq_lens_q, or position_ids that start again at 0) comes with "
            "a cache, which holds one sequence a row; leave them out"
        )
    if lengths is not None and not (is_decoder or is_padded):
        for name in ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"):
            options.pop(name, None)
        return lengths, None
    if totals is not None:
        _check_totals(shape, attention_mask, totals)
        # Flash attention goes by all four or by none.
        options.setdefault("cu_seq_lens_k", totals)
        options.setdefault("max_length_q", shape[1])
        options.setdefault("max_length_k", shape[1])
    elif lengths is not None:
        totals = torch.tensor([0, *accumulate(lengths)], device="cpu")
    if totals is not None:
        return None, Sequences.of_totals(totals, shape[1], device)
    positions = _telling_positions(shape, position_ids, attention_mask)
    if positions is None or has_cache:
        return None, None
    if shape[0] == 1:
        return None, Sequences.of_positions(positions, attention_mask, has_pooler)
    if torch.compiler.is_dynamo_compiling():
        torch._assert_async(~_is_packed(positions, attention_mask), _PROGRAMS_MANY_ROWS)
    return None, None
