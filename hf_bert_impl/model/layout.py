"""The steps of a call: `Inputs` (checked once) → `Layout` (planned once) → `Encoded`.

Notation: B batch, S sequence, D hidden size, T computed tokens of the whole batch, N tokens that
the caller reads. R sequences, L the longest of them, `...` any trailing shape.

A batch is unpadded once, before the embeddings, and padded once, after the last layer or by a head.
In between everything runs on `(T, D)`. Sequences are ordered by length, so that sequences of equal
length are neighbours. Attention over them is then a view, not a copy. (Packing is the idea of
flash-attention's BERT, https://github.com/Dao-AILab/flash-attention. The order is for backends that
take only sequences of equal length.)

Words:
    packed input: several sequences end to end in one row of the batch, none of which attends to
        another. `cu_seq_lens_q` says so, or positions that start again at 0.
    packed rows: the states (T, D) of a call that leaves padding out (`Route.is_packed`).
    packed weights: a copy of weights in the order in which a kernel reads them (`linear.Packed`).
    group: neighbouring sequences of equal length in the packed order (`RowGroup`).
    column: the place of a token in its sequence.
    spare rows: rows after the last token, which fill a kernel's call (`linear.rounded_up`).
    required: positions that a caller reads although the mask does not attend to them.
    bare: without hooks or similar code around a module, so that its `forward` may be called.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate, chain, groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .inputs import TOTALS_DO_NOT_FIT, Inputs
from .linear import rounded_up
from .route import Route

#: Queries and keys of each sequence.
Lengths = list[tuple[int, int]]
#: The packed order of a batch: its lengths. By sequence, the place of its position 0 among its
#: computed tokens. The number of each sequence, in packed order. Fields of the layout.
Order = tuple[Lengths, list[int], Sequence[int], dict[str, Any]]


class RowGroup(NamedTuple):
    """Neighbouring sequences of equal length in the packed order."""

    rows: int
    #: Computed tokens per row. The first `keys` of them are attended.
    queries: int
    #: Attended tokens per row. If it is 0, the context is 0.
    keys: int


@dataclass
class Layout:
    """The tokens that are computed, their places, and the mask they attend with.

    A token is computed when the mask attends to it, or when its hidden state is read anyway
    (see `plan`). Tokens that are not attended are queries, not keys: no token attends
    to them, as in upstream's mask.

    The caller's tensors are (B, S). Sequences are the rows of the batch, or, in input that came
    packed, stretches of its only row; as a padded batch of their own they are (R, L).
    """

    route: Route
    #: (B, S) of the caller's tensors.
    shape: tuple[int, int]
    #: (R, L) of the padded batch of sequences; (B, S) unless the input came packed.
    grid: tuple[int, int]
    #: The device of the tensors below.
    device: torch.device
    #: Runs of equal length, in packed order.
    groups: tuple[RowGroup, ...] = ()
    #: The mask that "padded" and "grid" attend with; None if all is attended.
    mask: Any = None
    #: (1, S) the number of each token's sequence, if packed input stays one row.
    number: Tensor | None = None
    #: Spare rows after the T tokens, which are not read: kernels get few numbers of rows, see
    #: `linear.rounded_up`. They are queries of the last sequence, and repeat the first token below.
    spare: int = 0
    #: (T,) flat position `row * S + column` of each computed token in the caller's tensors; None
    #: if all positions are computed, in the caller's order.
    token_index: Tensor | None = None
    #: (T,) the place of each computed token in its sequence; None if it is the column.
    column: Tensor | None = None
    #: The number of each sequence, in packed order; empty unless the input came packed.
    order: tuple[int, ...] = ()
    #: (T,) whether the hidden state goes into the padded output; None if all do.
    visible: Tensor | None = None
    #: (R,) where each sequence's position 0 is; None if it is not read, or if it is column 0.
    first_token: Tensor | None = None
    #: (N,) tokens whose state the caller reads after the last layer; None for all.
    outputs: Tensor | None = None
    #: Whether attention is not "sdpa".
    is_eager: bool = False
    #: Whether nothing is around any module (a hook, gradient checkpointing), so that modules call
    #: each other's `forward`. The way through `nn.Module.__call__` shows with one sentence.
    is_bare: bool = False

    @property
    def sizes(self) -> list[int]:
        """Rows of each group."""
        return [group.rows * group.queries for group in self.groups]

    @property
    def tokens(self) -> int:
        """T."""
        return sum(self.sizes) - self.spare

    def to(self, device: torch.device, non_blocking: bool = False) -> "Layout":
        """The same on another device. accelerate calls it where layers are on several."""
        device = torch.device(device)
        if self.device == device:
            return self
        moved: dict[str, Any] = {
            field.name: value.to(device, non_blocking=non_blocking)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, device=device, **moved)

    def read(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """`token_index`, `visible` and `first_token` among the states that the caller reads."""
        index, visible, first = self.token_index, self.visible, self.first_token
        if self.spare:
            index = None if index is None else index[: self.tokens]
            visible = None if visible is None else visible[: self.tokens]
        if self.outputs is not None:
            index = self.outputs if index is None else index[self.outputs]
            visible = None if visible is None else visible[self.outputs]
            first = None if first is None else torch.searchsorted(self.outputs, first)
        return index, visible, first

    def unpad(self, padded: Tensor | None) -> Any:
        """(B, S, ...), or what broadcasts to it, to (T, ...); None stays."""
        if padded is None:
            return None
        flat = padded.expand(*self.shape, *padded.shape[2:]).flatten(0, 1)
        if self.token_index is not None:
            return flat.index_select(0, self.token_index)
        if not self.spare:
            return flat
        return nn.functional.pad(flat, [0, 0] * (flat.ndim - 1) + [0, self.spare])

    def pad(self, states: Tensor) -> Tensor:
        """(T, ...) to (B, S, ...), zero at every position that is not computed or not visible."""
        if not self.route.is_packed:
            return states
        if self.visible is not None:
            states = states.masked_fill(~self.visible[:, None], 0)
        index = self.token_index
        if self.spare:
            states, index = states[: self.tokens], None if index is None else index[: self.tokens]
        return scatter(states, index, self.shape)

    def refill(self, padded: Tensor, states: Tensor) -> Tensor:
        """(T, ...) read back from `padded`, so that gradients pass through it.

        What `padded` does not hold, since it is not visible, comes from `states`.
        """
        fresh = self.unpad(padded)
        return fresh if self.visible is None else torch.where(self.visible[:, None], fresh, states)

    def to_grid(self, states: Tensor) -> Tensor:
        """(T, ...) to (R, L, ...), zero at every position that is not computed."""
        return scatter(states, self.grid_index, self.grid)

    def from_grid(self, padded: Tensor) -> Tensor:
        """(R, L, ...) to (T, ...)."""
        flat = padded.flatten(0, 1)
        return flat if self.grid_index is None else flat.index_select(0, self.grid_index)

    @cached_property
    def grid_index(self) -> Tensor | None:
        """(T,) flat position of each computed token in the grid; None if T is all of it."""
        if not self.order:
            return self.token_index
        starts = [row * self.grid[1] for row in self.order]
        return _ranges(starts, [queries for queries, _ in self._lengths()]).to(self.device)

    def _lengths(self) -> list[tuple[int, int]]:
        """Queries and keys of each sequence that has any, in packed order."""
        return [(queries, keys) for rows, queries, keys in self.groups for _ in range(rows)]

    @cached_property
    def key_index(self) -> Tensor | None:
        """(keys of all sequences,) where the attended tokens are; None if all T are attended."""
        lengths = self._lengths()
        if all(queries == keys for queries, keys in lengths):
            return None
        starts = list(accumulate((queries for queries, _ in lengths), initial=0))[:-1]
        return _ranges(starts, [keys for _, keys in lengths]).to(self.device, non_blocking=True)

    @cached_property
    def cumulative_lengths(self) -> tuple[Tensor, Tensor, int, int]:
        """Running totals (R' + 1,) int32 of queries and of keys, and the longest of each.

        Kernels for sequences of different lengths take them. R' counts sequences with
        tokens.
        """
        queries, keys = zip(*self._lengths(), strict=True)
        totals = torch.tensor([[0, *queries], [0, *keys]], dtype=torch.int32, device="cpu")
        totals = totals.cumsum(dim=1, dtype=torch.int32)
        totals = totals.to(self.device, non_blocking=True)
        return totals[0], totals[1], max(queries), max(keys)


def plan(
    inputs: Inputs,
    route: Route,
    required: Tensor | None = None,
    only_required: bool = False,
    *,
    first_token: bool = False,
    not_padding: Tensor | None = None,
    is_eager: bool = False,
    fills: bool = True,
) -> Layout:
    """Decides which tokens of a batch are computed, and where each is.

    Unless only required ones are read, masked-out tokens that are not the pad token are read too.
    ColBERT's queries are the best known case: they end in [MASK] tokens that no token attends to,
    and whose states are scored.

    Args:
        inputs: The batch.
        route: How it is computed if each row has an attended token, or attention is "sdpa".
        required: (B, S) bool: positions that are read although the mask does not attend to them.
        only_required: Whether only these are read, and not even attended tokens.
        first_token: Whether position 0 of every sequence is read, attended or not.
        not_padding: (B, S), not zero where a token is not the pad token. None if these are not
            read.
        is_eager: Whether attention is not "sdpa". A row without attended tokens makes the call
            padded then, since other backends attend to padding in it.
        fills: Whether there may be spare rows.
    """
    shape, device = inputs.shape, inputs.device
    mask = None if inputs.has_padding is False else inputs.attention_mask
    if route.is_packed:
        if inputs.lengths is not None and len(inputs.lengths) > 1:
            ordered = _order_of_sequences(inputs.lengths, device)
        elif inputs.lengths is None and mask is not None:
            ordered = _order_of_rows(mask.to(device), required, first_token, not_padding)
        else:
            ordered = _order_in_place(*shape, device)
        lengths, firsts, order, fields = ordered
        if is_eager and not all(keys for _, keys in lengths):
            route = Route.PADDED
    if not route.is_packed:
        layout = Layout(route, shape, shape, device, mask=mask)
        return _plan_one_row(layout, inputs) if inputs.is_packed else layout
    groups = tuple([RowGroup(len(list(same)), q, k) for (q, k), same in groupby(lengths) if q])
    layout = Layout(route, shape, fields.pop("grid", shape), device, groups, mask, **fields)
    layout.is_eager = is_eager
    is_in_place = layout.token_index is None and not layout.order
    if first_token and (only_required or not is_in_place):
        layout.first_token = _first_tokens(lengths, order, firsts).to(device)
    if fills and route is Route.ROWS and device.type == "cpu":
        _add_spare(layout, rounded_up(layout.tokens) - layout.tokens)
    elif not route.is_rows:
        _prepare_grid(layout)
    if only_required:
        layout.outputs = _outputs(layout, required)
    return layout


def _add_spare(layout: Layout, spare: int) -> None:
    """Appends spare rows, which are not read."""
    if not spare:
        return
    layout.spare = spare
    rows, queries, keys = layout.groups[-1]
    last = RowGroup(1, queries + spare, keys)
    others = (RowGroup(rows - 1, queries, keys),) if rows > 1 else ()
    layout.groups = (*layout.groups[:-1], *others, last)
    for name in ("token_index", "column", "visible"):
        value = getattr(layout, name)
        if value is not None:
            setattr(layout, name, torch.cat((value, value[:1].expand(spare))))


def _prepare_grid(layout: Layout) -> None:
    """Decides between the two routes, and makes the mask of attention on the padded batch."""
    if layout.token_index is None and not layout.order:
        # No padding: no mask, and a kernel that is called sooner than the other.
        layout.route, layout.mask = Route.GRID, None
    if layout.route is Route.VARLEN and not all(group.keys for group in layout.groups):
        layout.route = Route.GRID  # that kernel needs a key for each query
    if layout.route is Route.GRID and layout.order:
        computed = torch.ones(layout.tokens, dtype=torch.bool, device=layout.device)
        layout.mask = layout.to_grid(computed)


def _order_in_place(count: int, length: int, device: torch.device) -> Order:
    """The order of a batch of which every token is computed where it is."""
    fields: dict[str, Any] = {}
    if count > 1:
        fields["column"] = torch.arange(length, device=device).repeat(count)
    return [(length, length)] * count, [0] * count, range(count), fields


def _first_tokens(lengths: Lengths, order: Sequence[int], firsts: list[int]) -> Tensor:
    """(R,) where position 0 of each sequence is, by its place `firsts` in the sequence."""
    starts = accumulate((queries for queries, _ in lengths), initial=0)
    places = sorted(zip(order, starts, strict=False))
    return torch.tensor(
        [start + offset for (_, start), offset in zip(places, firsts, strict=True)], device="cpu"
    )


def _order_of_rows(
    mask: Tensor, required: Tensor | None, first_token: bool, not_padding: Tensor | None
) -> Order:
    """The order of a padded batch with this mask, (B, S); other arguments as in `plan`."""
    batch_size, length = mask.shape[0], mask.shape[1]
    attended = visible = mask != 0
    if not_padding is not None:
        visible = torch.logical_or(attended, not_padding)
    if required is not None:
        visible = visible | required.to(mask.device)
    # One transfer for all: on an accelerator this line waits for the device.
    counts = torch.stack((attended.sum(dim=1), visible.sum(dim=1), attended[:, 0])).tolist()
    keys, queries, is_key = counts
    if min(keys) == length:
        return _order_in_place(batch_size, length, mask.device)
    computed = visible
    if first_token and not all(is_key):
        computed = computed.clone()
        computed[:, 0] = True
    if computed is not visible:
        queries = computed.sum(dim=1).tolist()
    order = sorted(range(batch_size), key=list(zip(queries, keys, strict=True)).__getitem__)
    rows = torch.tensor(order, device=attended.device)  # (B,)
    places, column = computed.index_select(0, rows).nonzero(as_tuple=True)  # (T,)
    token_index = rows.index_select(0, places) * length + column
    if queries != keys:
        # Within a row attended tokens come first, so that a row's keys are a prefix of it.
        rank = places * 2 + ~attended.flatten().index_select(0, token_index)
        by_rank = rank.argsort(stable=True)
        token_index, column = token_index[by_rank], column[by_rank]
    fields = {"token_index": token_index, "column": column}
    if computed is not visible:
        fields["visible"] = visible.flatten()[token_index]
    # Column 0 is the row's first key, or the first of its queries that are no keys.
    firsts = [0 if first else count for first, count in zip(is_key, keys, strict=True)]
    return [(queries[row], keys[row]) for row in order], firsts, order, fields


def _order_of_sequences(lengths: list[int], device: torch.device) -> Order:
    """The order of one row that holds sequences of these lengths end to end."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    ordered = [lengths[row] for row in order]
    fields: dict[str, Any] = {
        "grid": (len(lengths), ordered[-1]),
        "column": _ranges([0] * len(ordered), ordered).to(device),
        "order": tuple(order),
    }
    if ordered != lengths:
        starts = list(accumulate(lengths, initial=0))
        fields["token_index"] = _ranges([starts[row] for row in order], ordered).to(device)
    return [(length, length) for length in ordered], [0] * len(ordered), order, fields


def _plan_one_row(layout: Layout, inputs: Inputs) -> Layout:
    """Packed input that stays one row: decoders, padded calls and recorded programs."""
    device, length = inputs.device, inputs.shape[1]
    totals = inputs.totals
    if inputs.lengths is not None:
        totals = torch.tensor([0, *accumulate(inputs.lengths)], device="cpu")
    assert totals is not None
    totals = totals.to(device, torch.long)
    index = torch.arange(length, device=device)
    if torch.compiler.is_dynamo_compiling():
        steps = totals.diff()
        holds = (totals[0] == 0) & (totals[-1] == length) & (steps > 0).all()
        torch._assert_async(holds, TOTALS_DO_NOT_FIT.format("as given", "(1, S)"))
    number = (index[:, None] >= totals[None, 1:-1]).sum(dim=1)  # (S,)
    column = (index - totals[number])[None]
    layout.number, layout.column, layout.first_token = number[None], column, totals[:-1]
    return layout


def _outputs(layout: Layout, required: Tensor | None) -> Tensor:
    """(N,) the required tokens, and the tokens at position 0 if they are read."""
    first = layout.first_token
    if required is None and first is not None:
        # Without an index the sequences are in order, and so are their first tokens.
        return first if layout.token_index is None else first.sort().values
    is_read = torch.zeros(layout.tokens, dtype=torch.bool, device=layout.device)
    if required is not None:
        is_read |= layout.unpad(required.to(layout.device))[: layout.tokens]
    if first is not None:
        is_read[first] = True
    return is_read.nonzero().flatten()


def _ranges(starts: Sequence[int], lengths: Sequence[int]) -> Tensor:
    """(sum of lengths,) on the CPU: from each start as many numbers as its length, end to end.

    It is plain Python, because torch's `repeat_interleave` wakes all threads even for a dozen
    numbers.
    """
    ends = map(int.__add__, starts, lengths)
    numbers = array("q", chain.from_iterable(map(range, starts, ends)))
    return torch.frombuffer(numbers, dtype=torch.int64)


def scatter(states: Tensor, index: Tensor | None, shape: tuple[int, int]) -> Tensor:
    """(T, ...) to (*shape, ...), each at its flat position in `index` (T,), zero elsewhere.

    Without an index they are all positions, in turn.
    """
    if index is None:
        return states.unflatten(0, shape)
    padded = states.new_zeros((shape[0] * shape[1], *states.shape[1:]))
    return padded.index_copy_(0, index, states).unflatten(0, shape)


# --- what a head reads ---------------------------------------------------------------------------


@dataclass
class Encoded:
    """The output of `BertModel` for a head: the states that the head reads, without padding."""

    #: (N, D) of the tokens at `index`; (B, S, D) if that is None.
    states: Tensor
    #: (N,) flat position `row * S + column` of each state.
    index: Tensor | None
    #: (B, S).
    shape: tuple[int, int]
    #: (B, D), or (R, D) of packed input; None without a pooler.
    pooled: Tensor | None
    #: The attention mask of states (B, S, D), if some of them may be of padding.
    mask: Any = None
    #: (B, S, D) each; padded as the caller of the model gets them.
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None
    cache: Any = None

    @classmethod
    def of(
        cls,
        layout: Layout,
        states: Tensor,
        hidden_states: tuple[Tensor, ...] | None,
        pooler: Any,
    ) -> "Encoded":
        """Selects the states that the caller reads from the last ones, (..., D).

        Args:
            layout: Of them.
            states: The encoder's output.
            hidden_states: All states that are asked for, padded; None for others.
            pooler: A module, or None.
        """
        is_packed = layout.route.is_packed
        index, visible, first = layout.read()
        starts = states  # (B or R, 1 or S, D), of which a pooler reads [:, 0]
        if first is not None:
            starts = (states if is_packed else states[0]).index_select(0, first)[:, None]
        if is_packed and layout.spare and layout.outputs is None:
            states = states[: layout.tokens]
        if is_packed and index is None:
            states = states.unflatten(0, layout.shape)
            starts = states if first is None else starts
        elif visible is not None:
            states, index = states[visible], index[visible]  # type: ignore[index]
        pooled = None
        if pooler is not None:
            pooled = (pooler.forward if layout.is_bare else pooler)(starts)
        if hidden_states is not None and hidden_states[-1] is not None:
            # Both outputs are the same tensor, so that they have the same gradient.
            if is_packed:
                states, index = hidden_states[-1], None
            else:
                hidden_states = (*hidden_states[:-1], states)
        return cls(states, index, layout.shape, pooled, None, hidden_states)

    def pad(self, rows: Tensor, in_place: bool = False) -> Tensor:
        """Rows computed from `states`, (N, ...) or (B, S, ...), to (B, S, ...), zero elsewhere.

        Args:
            rows: The computed values.
            in_place: Whether `rows` may be overwritten.
        """
        if self.index is None:
            return rows
        index = self.index.to(rows.device)
        if rows.ndim == 2:
            return scatter(rows, index, self.shape)
        others = torch.ones(self.shape, dtype=torch.bool, device=rows.device)
        others.view(-1)[index] = False
        # In place where it is possible: scores are the largest tensor of the pass.
        fill = rows.masked_fill_ if in_place and not rows.requires_grad else rows.masked_fill
        return fill(others[..., None], 0)

    def at(self, positions: Tensor) -> Tensor:
        """The states (M, D) at flat positions (M,), a subset of `index`."""
        if self.index is None:
            return self.states.flatten(0, 1)[positions]
        place = torch.empty(self.shape, dtype=torch.long, device=self.index.device).flatten()
        place[self.index] = torch.arange(len(self.index), device=self.index.device)
        return self.states[place[positions]]
