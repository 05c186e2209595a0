"""The steps of a call: `Inputs` (checked once) → `Layout` (planned once) → `Encoded`.

Notation: B batch, S sequence, D hidden size, T computed tokens of the whole batch, N tokens that
the caller reads. R sequences, L the longest of them, `...` any trailing shape.

A batch is unpadded once, before the embeddings, and padded once, after the last layer or by a head.
In between everything runs on `(T, D)`. Sequences are ordered by length, so that sequences of equal
length are neighbours. Attention over them is then a view, not a copy. (Packing is the idea of
flash-attention's BERT, https://github.com/Dao-AILab/flash-attention. The order is for backends that
take only sequences of equal length.)

A batch may also come packed: several sequences end to end in one row, none of which attends to
another. `cu_seq_lens_q` says so, or positions that start again at 0.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cached_property
from itertools import accumulate, chain, groupby, pairwise, repeat
from operator import contains, itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_all
from torch.utils.hooks import RemovableHandle

from .configuration_bert import BertConfig
from .linear import type_name

#: Queries and keys of each sequence.
Lengths = list[tuple[int, int]]
#: The arguments of packed input, in the form of transformers.
TOTALS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


_hooks = itemgetter(
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
)
#: The `forward` of torch's modules that compute each row by itself. A module without a `forward`
#: is a container.
BY_ROW = {
    kind.forward
    for kind in (
        *(nn.Module, nn.Sequential, nn.Identity, nn.Linear, nn.Embedding, nn.LayerNorm),
        *(nn.RMSNorm, nn.Dropout, nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid),
        *(nn.Hardswish, nn.Hardtanh, nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.ReLU, nn.SELU),
        *(nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink),
    )
}
#: PEFT's LoRA layers, by name. Its variants (aLoRA, DoRA, …) may depend on the place of a token.
LORA = ("peft.tuners.lora.layer.Linear", "peft.tuners.lora.layer.Embedding")
#: Modules whose hooks compute, move or gather weights, or request gradients. These hooks do not
#: depend on the shape of states.
MOVERS = (
    "torch.nn.utils.",
    "torch.distributed.fsdp.",
    "accelerate.hooks",
    "transformers.modeling_utils",
    "transformers.utils.output_capturing",  # which act while upstream's `forward` runs
    "hf_bert_impl.in_place",
)


class Route(Enum):
    """The way a call is computed, decided once; see `BertModel._route`."""

    #: (B, S, D), as transformers computes it.
    PADDED = "padded"
    #: (T, D); attention on the padded batch, with a mask.
    GRID = "grid"
    #: (T, D); attention by groups of sequences of equal length.
    ROWS = "rows"
    #: (T, D); attention sequence by sequence, so that none depends on the others.
    SINGLE = "single"
    #: (T, D); attention of all sequences in one kernel of CUDA.
    VARLEN = "varlen"

    def __init__(self, name: str) -> None:
        #: Whether states are (T, D).
        self.is_packed = name != "padded"


@dataclass
class Inputs:
    """The batch of a call, checked, by the arguments of `BertModel.forward`."""

    input_ids: Tensor | None
    attention_mask: Any
    token_type_ids: Tensor | None
    position_ids: Tensor | None
    inputs_embeds: Tensor | None
    #: (B, S).
    shape: tuple[int, int]
    device: torch.device
    #: Whether values may not decide a shape: the call is recorded, or has none to read.
    is_traced: bool
    #: Tokens of each sequence, if the batch came packed. None in a recorded program.
    lengths: list[int] | None = None
    #: (R + 1,) where they begin and end, in a recorded program.
    totals: Tensor | None = None
    #: Whether the mask leaves something out; None if its values were not read.
    has_padding: bool | None = None
    #: Cached tokens before the batch.
    past_length: int = 0

    @classmethod
    def of(
        cls,
        config: BertConfig,
        input_ids: Tensor | None,
        attention_mask: Any,
        token_type_ids: Tensor | None,
        position_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        options: Mapping[str, Any],
        past_length: int | None = None,
    ) -> "Inputs":
        """Checks a batch against the sizes of the model.

        Args:
            config: The model's.
            options: Further arguments of the call; `TOTALS` are read.
            past_length: Tokens in the cache; None without a cache.

        Raises:
            ValueError: The input does not fit the model.
        """
        source = _check_source(config, input_ids, inputs_embeds)
        shape, device = (source.shape[0], source.shape[1]), source.device
        totals = options.get("cu_seq_lens_q")
        is_unread = is_traced(device, source, attention_mask, token_type_ids, position_ids, totals)
        for ids, name, field in (
            (input_ids, "input_ids", "vocab_size"),
            (position_ids, "position_ids", "max_position_embeddings"),
            (token_type_ids, "token_type_ids", "type_vocab_size"),
        ):
            if ids is not None:
                check_ids(ids, name, config, field, shape, is_unread)
        if isinstance(attention_mask, Tensor) and attention_mask.ndim == 4:
            attention_mask = key_mask(config, attention_mask, shape[0])
        lengths = None
        if totals is not None:
            lengths = _lengths_of_totals(shape, attention_mask, totals, is_unread)
        elif position_ids is not None:
            lengths, position_ids = _of_positions(shape, attention_mask, position_ids, is_unread)
        given = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        totals, past = totals if lengths is None else None, past_length or 0
        inputs = cls(*given, shape, device, is_unread, lengths, totals, past_length=past)
        inputs._check(config, past_length, options)
        return inputs

    def _check(
        self, config: BertConfig, past_length: int | None, options: Mapping[str, Any]
    ) -> None:
        """The checks that depend on whether the batch came packed; fills in the mask."""
        if self.is_packed and past_length is not None:
            raise ValueError(
                "packed input (cu_seq_lens_q, or position_ids that start again at 0) cannot be "
                "used with a cache, which holds one sequence per row. Leave one of them out."
            )
        if options.get("cu_seq_lens_k") is not None and options.get("cu_seq_lens_q") is None:
            raise ValueError(
                "cu_seq_lens_k is given without cu_seq_lens_q. Pass both, or only the latter."
            )
        if self.position_ids is None:
            _check_length(config, max(self.lengths or self.shape[1:]), self.past_length)
        has_none = self.attention_mask is None and not self.is_packed
        if has_none and self.input_ids is not None and config.variant == "codertimo":
            self.attention_mask = self.input_ids != (config.pad_token_id or 0)  # `codertimo.py`
        if isinstance(self.attention_mask, Tensor):
            sizes = (*self.shape, self.shape[1] + self.past_length)
            self.has_padding = check_mask(
                self.attention_mask, "attention_mask", sizes, past_length is None, self.is_traced
            )

    @property
    def count(self) -> int:
        """R, how many pooled vectors they give."""
        if self.lengths is not None:
            return len(self.lengths)
        return self.shape[0] if self.totals is None else self.totals.shape[0] - 1

    @property
    def is_packed(self) -> bool:
        """Whether the batch is one row of several sequences."""
        return self.lengths is not None or self.totals is not None

    def with_totals(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options of a padded call: flash attention goes by all of `TOTALS` or by none."""
        totals, length = options.get("cu_seq_lens_q"), self.shape[1]
        if totals is None:
            return options
        return dict(zip(TOTALS, (totals, totals, length, length), strict=True)) | options

    def not_padding(self, pad_token_id: int | None, word_embeddings: Any) -> Tensor:
        """(B, S), of any type: not zero where a token is not the pad token.

        Embeddings are the pad token's if they are its row of the table. If there is no table, no
        token is the pad token.

        Args:
            pad_token_id: None if no token is it.
            word_embeddings: The table; a module.
        """
        if self.input_ids is not None and pad_token_id is not None:
            # No operator for the usual id.
            return self.input_ids if pad_token_id == 0 else self.input_ids - pad_token_id
        source, table = self.inputs_embeds, getattr(word_embeddings, "weight", None)
        if (
            source is None
            or pad_token_id is None
            or not isinstance(table, Tensor)
            or table.device.type == "meta"
            or table.ndim != 2
            or table.shape[1] != source.shape[-1]
            or not -len(table) <= pad_token_id < len(table)
            or torch._C._functorch.is_functorch_wrapped_tensor(source)
        ):
            return torch.ones(self.shape, dtype=torch.bool, device=self.device)
        row = table.detach()[pad_token_id].to(source.device)
        return (source.detach() != row).any(dim=-1)


class RowGroup(NamedTuple):
    """Neighbouring sequences of equal length in the packed order."""

    rows: int
    #: Computed tokens per row. The first `keys` of them are attended.
    queries: int
    #: Attended tokens per row. If it is 0, the context is 0; with "eager" the queries attend to the
    #: whole row equally, as upstream.
    keys: int


class Wanted(NamedTuple):
    """The hidden states that are read after the last layer, in addition to attended tokens.

    Unless only required ones are read, masked-out tokens that are not the pad token are read too.
    ColBERT's queries are the best known case: they end in [MASK] tokens that no token attends to,
    and whose states are scored.
    """

    #: (B, S) bool: positions that are read although the mask does not attend to them.
    required: Tensor | None = None
    #: Whether only these are read, and not even attended tokens.
    only_required: bool = False
    #: Whether position 0 of every sequence is read, attended or not.
    first_token: bool = False
    #: (B, S), not zero where a token is not the pad token. None if these are not read.
    not_padding: Tensor | None = None
    #: Whether a row without attended tokens is computed as a whole, since its queries attend to
    #: all of it equally ("eager").
    is_eager: bool = False


@dataclass
class Layout:
    """The tokens that are computed, their places, and the mask they attend with.

    A token is computed when the mask attends to it, or when its hidden state is read anyway
    (see `Wanted`). Tokens that are not attended are queries, not keys: no token attends
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
    #: Whether the queries of a row without attended tokens attend to all of it ("eager").
    is_eager: bool = False
    #: (H, L, L), added to the scores by the places of query and key. It is for the routes "rows"
    #: and "single", and for sequences that attend to all of their tokens.
    bias: Tensor | None = None

    @cached_property
    def sizes(self) -> list[int]:
        """Computed tokens of each group."""
        return [group.rows * group.queries for group in self.groups]

    @property
    def tokens(self) -> int:
        """T."""
        return sum(self.sizes)

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
        if self.outputs is not None:
            index = self.outputs if index is None else index[self.outputs]
            visible = None if visible is None else visible[self.outputs]
            first = None if first is None else torch.searchsorted(self.outputs, first)
        return index, visible, first

    def unpad(self, padded: Tensor) -> Tensor:
        """(B, S, ...) to (T, ...)."""
        flat = padded.flatten(0, 1)
        return flat if self.token_index is None else flat.index_select(0, self.token_index)

    def pad(self, states: Tensor) -> Tensor:
        """(T, ...) to (B, S, ...), zero at every position that is not computed or not visible."""
        if not self.route.is_packed:
            return states
        if self.visible is not None:
            states = states.masked_fill(~self.visible[:, None], 0)
        return scatter(states, self.token_index, self.shape)

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


def plan(inputs: Inputs, wanted: Wanted, route: Route) -> Layout:
    """Decides which tokens of a batch are computed, and where each is.

    Args:
        inputs: The batch.
        wanted: Which hidden states are read.
        route: How it is computed.
    """
    shape, device = inputs.shape, inputs.device
    mask = None if inputs.has_padding is False else inputs.attention_mask
    if not route.is_packed:
        layout = Layout(route, shape, shape, device, mask=mask, is_eager=wanted.is_eager)
        return _plan_one_row(layout, inputs) if inputs.is_packed else layout
    lengths, firsts, order, fields = _order(inputs, mask, wanted)
    groups = tuple(RowGroup(len(list(same)), q, k) for (q, k), same in groupby(lengths) if q)
    layout = Layout(route, shape, fields.pop("grid", shape), device, groups, mask, **fields)
    layout.is_eager = wanted.is_eager
    is_in_place = layout.token_index is None and not layout.order
    if wanted.first_token and (wanted.only_required or not is_in_place):
        layout.first_token = _first_tokens(lengths, order, firsts).to(device)
    if route in (Route.GRID, Route.VARLEN):
        _prepare_grid(layout)
    if wanted.only_required:
        layout.outputs = _outputs(layout, wanted.required)
    return layout


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


def _order(inputs: Inputs, mask: Any, wanted: Wanted) -> tuple[Lengths, list[int], Any, Any]:
    """The packed order of a batch.

    Returns:
        Queries and keys of each sequence, in packed order. By sequence, the place of its position 0
        among its computed tokens. The number of each sequence, in packed order. Fields of the
        layout.
    """
    if inputs.lengths is not None and len(inputs.lengths) > 1:
        return _order_of_sequences(inputs.lengths, inputs.device)
    if inputs.lengths is None and mask is not None:
        return _order_of_rows(mask.to(inputs.device), wanted)
    return _order_in_place(*inputs.shape, inputs.device)


def _order_in_place(
    count: int, length: int, device: torch.device
) -> tuple[Lengths, list[int], Any, Any]:
    """`_order` of a batch of which every token is computed where it is."""
    fields = {}
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


def _order_of_rows(mask: Tensor, wanted: Wanted) -> tuple[Lengths, list[int], Any, Any]:
    """`_order` of a padded batch with this mask, (B, S)."""
    batch_size, length = mask.shape[0], mask.shape[1]
    attended = visible = mask != 0
    if wanted.not_padding is not None:
        visible = torch.logical_or(attended, wanted.not_padding)
    if wanted.required is not None:
        visible = visible | wanted.required.to(mask.device)
    # One transfer for all: on an accelerator this line waits for the device.
    counts = torch.stack((attended.sum(dim=1), visible.sum(dim=1), attended[:, 0])).tolist()
    keys, queries, is_key = counts
    if min(keys) == length:
        return _order_in_place(batch_size, length, mask.device)
    computed = visible
    if wanted.first_token and not all(is_key):
        computed = computed.clone()
        computed[:, 0] = True
    if wanted.is_eager and not all(keys):
        computed = computed | ~attended.any(dim=1, keepdim=True)
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


def _order_of_sequences(
    lengths: list[int], device: torch.device
) -> tuple[Lengths, list[int], Any, Any]:
    """`_order` of one row that holds sequences of these lengths end to end."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    ordered = [lengths[row] for row in order]
    fields = {
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
        torch._assert_async(holds, _TOTALS_DO_NOT_FIT.format("as given", "(1, S)"))
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
        is_read |= layout.unpad(required.to(layout.device))
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


def is_traced(device: torch.device, *tensors: Any) -> bool:
    """Whether no shape of this call may depend on values.

    So it is if the call is recorded as a program, or if one of `tensors` has no values to read.
    """
    # A compiler cannot trace the other questions.
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or device.type == "meta":
        return True
    functorch = torch._C._functorch
    for tensor in tensors:
        if tensor is None:
            continue
        while isinstance(tensor, Tensor) and functorch.is_functorch_wrapped_tensor(tensor):
            if functorch.is_batchedtensor(tensor):  # `torch.vmap` maps over it
                return True
            tensor = functorch.get_unwrapped(tensor)
        if isinstance(tensor, Tensor) and functorch.is_legacy_batchedtensor(tensor):
            return True
    return False


def is_mapped(tensor: Any) -> bool:
    """Whether `torch.vmap` maps over this tensor, so that it has no values to read."""
    is_program = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return not is_program and is_traced(torch.device("cpu"), tensor)


def key_mask(config: BertConfig, mask: Tensor, batch_size: int) -> Tensor:
    """(B, K) in place of a mask (B or 1, 1, 1, K) of zeros and ones; other 4-D masks unchanged."""
    # In a decoder a 4-D mask replaces causality as well.
    if config.is_decoder or mask.is_floating_point() or mask.shape[1:3] != (1, 1):
        return mask
    return mask[:, 0, 0].expand(batch_size, -1)


# --- packed input --------------------------------------------------------------------------------

_TOTALS_DO_NOT_FIT = (
    "cu_seq_lens_q={} does not fit input of shape {}; packed input is one row, and its totals are "
    "whole numbers that rise from 0 to its length"
)
_MASK_BESIDE_TOTALS = (
    "cu_seq_lens_q comes with an attention_mask that {}; packed input holds no padding: leave the "
    "mask out, and padding too"
)
_MANY_ROWS = (
    "position_ids start again at 0 within a row of a batch of {}; packed input is one row: lay "
    "them end to end in one, or, if each row is one sequence, say what a token sees by an "
    "attention_mask of shape (batch, sequence, sequence)"
)
_RECORDED = (
    "position_ids start again at 0 in a compiled or traced program, which cannot find out where "
    "sequences begin; give cu_seq_lens_q, or call the model itself"
)


def _lengths_of_totals(
    shape: tuple[int, int], attention_mask: Any, totals: Tensor, is_unread: bool
) -> list[int] | None:
    """Lengths of packed sequences by `cu_seq_lens_q`, (R + 1,); None if values may not be read.

    Raises:
        ValueError: The totals do not rise from 0 to S, there is more than one row, or the mask has
            zeros.
    """
    is_row = totals.ndim == 1 and totals.shape[0] > 1
    if not is_row or totals.is_floating_point() or shape[0] != 1:
        given = f"of shape {tuple(totals.shape)} and {totals.dtype}"
        raise ValueError(_TOTALS_DO_NOT_FIT.format(given, shape))
    axes = 2 if attention_mask is None else len(attention_mask.shape)
    if axes != 2:
        raise ValueError(_MASK_BESIDE_TOTALS.format(f"has {axes} dimensions"))
    if is_unread:
        return None
    if attention_mask is not None and not bool((attention_mask != 0).all()):
        raise ValueError(_MASK_BESIDE_TOTALS.format("has zeros"))
    ends = totals.tolist()
    lengths = [b - a for a, b in pairwise(ends)]
    if ends[0] != 0 or ends[-1] != shape[1] or min(lengths) < 1:
        raise ValueError(_TOTALS_DO_NOT_FIT.format(ends, shape))
    return lengths


def _of_positions(
    shape: tuple[int, int], attention_mask: Any, position_ids: Tensor, is_unread: bool
) -> tuple[list[int] | None, Tensor]:
    """Lengths of packed sequences by positions of one row that start again at 0; the positions.

    No lengths if they do not, or if values may not be read.

    Raises:
        ValueError: There is more than one row.
    """
    starts_again = _starts_again(shape, attention_mask, position_ids)
    if is_unread:
        if torch.compiler.is_compiling():
            torch._assert_async(~starts_again, _RECORDED)
        elif torch.jit.is_tracing():
            # It drops the assertion. The program ends with an index that is out of range instead.
            position_ids = position_ids.masked_fill(starts_again, -1)
        return None, position_ids
    if not bool(starts_again):
        return None, position_ids
    if shape[0] > 1:
        raise ValueError(_MANY_ROWS.format(shape[0]))
    starts = (position_ids.flatten() == 0).nonzero().flatten().tolist()
    return [b - a for a, b in pairwise([*starts, shape[1]])], position_ids


def _starts_again(shape: tuple[int, int], attention_mask: Any, position_ids: Tensor) -> Tensor:
    """() bool: whether a row of positions is runs 0, 1, 2, … that start again at 0.

    False if the mask has zeros, or is one between queries and keys. A row of zeros is not packed:
    it switches positions off. Positions of a wrong shape are reported later.
    """
    axes = 2 if attention_mask is None else len(attention_mask.shape)
    if axes != 2 or position_ids.ndim not in (1, 2) or position_ids.shape[-1] != shape[1]:
        return torch.zeros((), dtype=torch.bool, device=position_ids.device)
    positions = position_ids.reshape(-1, shape[1])
    before, after = positions[:, :-1], positions[:, 1:]
    is_start = after == 0
    is_runs = (positions[:, 0] == 0) & (is_start | (after == before + 1)).all(dim=1)
    is_packed = (is_runs & is_start.any(dim=1) & (positions != 0).any(dim=1)).any()
    if attention_mask is not None:
        is_packed = is_packed & (attention_mask != 0).all().to(is_packed.device)
    return is_packed


# --- checks --------------------------------------------------------------------------------------
# Shapes are checked on every device. Values (ids in range) are checked on CPU tensors only, where
# reading them is nearly free; on an accelerator each read would wait for the device.


def reads_values(tensor: Tensor) -> bool:
    """Whether the values of `tensor` may be read: on the CPU, and not while tracing."""
    return tensor.device.type == "cpu" and not is_traced(tensor.device, tensor)


def _check_source(
    config: BertConfig, input_ids: Tensor | None, inputs_embeds: Tensor | None
) -> Tensor:
    """The ids, or the embeddings in their place.

    Raises:
        ValueError: Neither or both are given, they are no batch, or an id is out of range.
    """
    if (input_ids is None) == (inputs_embeds is None):
        given = "both" if input_ids is not None else "neither"
        raise ValueError(
            f"You must specify exactly one of input_ids or inputs_embeds; {given} given"
        )
    source: Any = inputs_embeds if input_ids is None else input_ids
    if input_ids is not None and source.ndim != 2:
        raise ValueError(
            f"input_ids has shape {tuple(source.shape)}; it must be (batch, sequence): for one "
            "sentence add a batch axis by input_ids[None]"
        )
    if input_ids is not None and (source.is_floating_point() or source.dtype == torch.bool):
        raise ValueError(
            f"input_ids has dtype {source.dtype}; token ids are whole numbers (torch.long)"
        )
    if input_ids is None and (source.ndim != 3 or source.shape[-1] != config.hidden_size):
        raise ValueError(
            f"inputs_embeds has shape {tuple(source.shape)}; it must be "
            f"(batch, sequence, {config.hidden_size})"
        )
    if source.shape[0] == 0 or source.shape[1] == 0:
        raise ValueError(
            f"the batch is empty: shape ({source.shape[0]}, {source.shape[1]}); give at least one "
            "sequence of at least one token"
        )
    return source


def _check_length(config: BertConfig, tokens: int, past_length: int) -> None:
    """Raises ValueError if a sequence is longer than the model's positions."""
    longest = config.max_position_embeddings
    if past_length + tokens > longest:
        cached = f" after {past_length} cached ones" if past_length else ""
        raise ValueError(
            f"the sequence has {tokens} tokens{cached}, the model takes at most {longest} "
            "(max_position_embeddings); truncate, for example with "
            f"tokenizer(..., truncation=True, max_length={longest})"
        )


def check_mask(
    mask: Tensor, name: str, sizes: tuple[int, int, int], exact: bool, is_unread: bool
) -> bool | None:
    """Checks the shape of an attention mask, and on the CPU that it is one of zeros and ones.

    Args:
        sizes: (batch, queries, keys).
        exact: Whether a 2-D mask covers just the keys; with a cache it may be longer.
        is_unread: Whether values may not be read.

    Returns:
        Whether it leaves something out; None if its values are not read.

    Raises:
        ValueError: The shape is none of (B, K), (B, Q, K), (B or 1, heads or 1, Q or 1, K), or a
            mask that is added to the scores is not a 4-D tensor of floats.
    """
    _check_mask_shape(mask, name, sizes, exact)
    is_added = mask.ndim == 4 and mask.is_floating_point()
    is_right = mask.ndim > 2 and mask.dtype == torch.bool
    if is_added or is_right or is_unread or not mask.is_cpu:
        return None
    lowest = mask.amin().item() if mask.numel() else 0  # NaN, if there is one
    if not lowest >= 0:
        axes = {2: "[:, None, None]", 3: "[:, None]"}.get(mask.ndim, "")
        floats = "" if mask.is_floating_point() else ".float()"
        raise ValueError(
            f"{name} holds {lowest:g}; a {mask.ndim}-D mask has 1 where a token is attended and 0 "
            "where not. A mask that is added to the scores is a 4-D tensor of floats: give "
            f"{name}{axes}{floats}"
        )
    return not lowest


def _check_mask_shape(mask: Tensor, name: str, sizes: tuple[int, int, int], exact: bool) -> None:
    batch_size, queries, keys = sizes
    shape = tuple(mask.shape)
    if mask.ndim == 2:
        fits = shape[0] == batch_size and (shape[1] == keys or (not exact and shape[1] >= queries))
    elif mask.ndim == 3:
        fits = shape[:2] == (batch_size, queries)
    else:
        fits = mask.ndim == 4 and shape[0] in (1, batch_size) and shape[2] in (1, queries)
    if mask.ndim > 2 and exact:
        fits = fits and shape[-1] == keys
    if not fits:
        raise ValueError(
            f"{name} has shape {shape}; for this batch it must be ({batch_size}, {keys}), "
            f"({batch_size}, {queries}, {keys}), ({batch_size}, 1, {queries}, {keys}) or "
            f"({batch_size}, 1, 1, {keys})"
        )


def check_memory(
    config: BertConfig, shape: tuple[int, int], encoder_states: Tensor, mask: Tensor | None
) -> None:
    """Raises ValueError if the states of an encoder, or their mask, do not fit."""
    if not config.add_cross_attention:
        raise ValueError(
            "encoder_hidden_states given to a model without cross-attention; set "
            "is_decoder=True and add_cross_attention=True in its config"
        )
    if encoder_states.ndim != 3 or encoder_states.shape[0] != shape[0]:
        raise ValueError(
            f"encoder_hidden_states has shape {tuple(encoder_states.shape)}; it must be "
            f"({shape[0]}, keys, {config.hidden_size})"
        )
    if mask is not None:
        sizes = (*shape, encoder_states.shape[1])
        check_mask(mask, "encoder_attention_mask", sizes, True, is_traced(mask.device, mask))


def expand_head_mask(config: BertConfig, head_mask: Tensor) -> Tensor:
    """(H,) or (layers, H) to (layers, H)."""
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    if tuple(head_mask.shape) not in ((heads,), (layers, heads)):
        raise ValueError(
            f"head_mask has shape {tuple(head_mask.shape)}; it must be ({heads},) or "
            f"({layers}, {heads}): heads keep their number when others are pruned"
        )
    return head_mask.expand(layers, heads)


def check_positions(shape: tuple[int, int], **named: Tensor | None) -> Tensor | None:
    """Checks masks of positions, and joins them: (B, S) bool, or None if all are None.

    Args:
        shape: (B, S).
        named: By argument, (B, S) of bools or whole numbers, or None.

    Raises:
        ValueError: One is no such tensor.
    """
    together = None
    for name, given in named.items():
        if given is None:
            continue
        what = f"a {type(given).__name__}"
        if isinstance(given, Tensor):
            what = f"of shape {tuple(given.shape)} and {given.dtype}"
            fits = tuple(given.shape) == shape and not given.is_floating_point()
        if not isinstance(given, Tensor) or not fits:
            raise ValueError(
                f"{name} is {what}; for this batch it must be a bool tensor of shape {shape}"
            )
        mask = given.to(torch.bool)
        together = mask if together is None else together.to(mask.device) | mask
    return together


def check_ids(
    ids: Tensor,
    name: str,
    config: BertConfig,
    field: str,
    shape: tuple[int, int],
    is_unread: bool,
) -> None:
    """Checks ids: their shape, and on the CPU their range where their values can be read.

    Args:
        field: Of the config; ids are below it.
        shape: (B, S), to which the ids must broadcast.
        is_unread: Whether values may not be read.

    Raises:
        ValueError: The shape does not fit, or an id is out of range.
    """
    given = tuple(ids.shape)
    # Each size is compared alone: torch.compile has symbols for sizes, which `in` does not find.
    fits = len(given) in (1, 2) and given[-1] == shape[1]
    if not fits or (len(given) == 2 and given[0] != 1 and given[0] != shape[0]):
        raise ValueError(
            f"{name} has shape {given}; for this batch it must be {shape}, or (1, {shape[1]}) for "
            "all rows alike"
        )
    if not is_unread and ids.is_cpu:
        hint = "; is this its tokenizer?" * (name == "input_ids")
        check_range(ids, name, getattr(config, field), field, hint)


def check_range(
    tensor: Tensor, name: str, limit: int, limit_name: str, hint: str = "", ignore: int = 0
) -> None:
    """Raises ValueError if a value is outside 0..limit-1 and is not `ignore`, below 0."""
    lowest, highest = (bound.item() for bound in torch.aminmax(tensor))
    if lowest < 0 and ignore < 0:
        real = tensor[tensor != ignore]
        lowest, highest = (real.amin().item(), real.amax().item()) if real.numel() else (0, 0)
    if lowest < 0 or highest >= limit:
        also = f", or {ignore} to ignore an item" if ignore < 0 else ""
        raise ValueError(
            f"{name} holds {int(lowest if lowest < 0 else highest)}; allowed is 0 to {limit - 1} "
            f"({limit_name}={limit}){also}{hint}"
        )


# --- hooks and other modules ---------------------------------------------------------------------
# Packed rows (T, D) exist only in this package. A hook must get the tensors that it gets in
# transformers, and so must a module of another library. So a call is computed padded,
# (B, S, D), if any module has a hook or does not declare that it takes packed rows. Classes declare
# it by the attribute `takes_packed`: the methods that packed rows go through. A subclass that
# replaces one of them, or a patch of the class, does not count as declared.


class Inside:
    """The modules of a model, and what prevents packed rows in them.

    A call of a small model takes a few milliseconds, so the modules are listed once. Each call
    compares what they hold with that list, in loops of the interpreter. torch counts all hooks that
    were ever registered. While that number is the same, there is no new hook.
    """

    def __init__(self) -> None:
        #: The modules, and their paths.
        self.listed: dict[nn.Module, str] = {}
        #: The number of hooks that torch counted.
        self.hooks: int | None = None
        #: Whether a module inside the root has a hook, or another `forward`.
        self.is_hooked = False
        #: Why packed rows will not do.
        self.reason: str | None = None

    def why_padded(self, root: nn.Module) -> str | None:
        """Why a call of `root` has to be computed padded; None if packed rows will do."""
        if hooks_of_all._has_any_global_hook():
            return "a hook of all modules"
        if (
            self.reason is not None
            or self.hooks != RemovableHandle.next_id
            or root not in self.listed
            or list(chain.from_iterable(map(dict.values, self.slots))) != self.contents
            or list(map(type, self.listed)) != self.types
            or list(map(getattr, self.owners, self.names)) != self.methods
            or any(map(contains, self.states, repeat("forward")))
        ):
            self._list(root)
        return self.reason

    def _list(self, root: nn.Module) -> None:
        count = RemovableHandle.next_id  # read first: another thread may add a hook
        self.listed = dict(_walk(root))
        self.types = [type(module) for module in self.listed]
        self.states = [vars(module) for module in self.listed]
        self.slots = [state["_modules"] for state in self.states if state["_modules"]]
        self.contents = list(chain.from_iterable(map(dict.values, self.slots)))
        declared = [(kind, name) for kind in dict.fromkeys(self.types) for name in _names(kind)]
        self.owners, self.names = [kind for kind, _ in declared], [name for _, name in declared]
        self.methods = list(map(getattr, self.owners, self.names))
        self.reason = next(self._reasons(root), None)
        self.is_hooked = any(map(_is_hooked, list(self.listed)[1:]))
        self.hooks = count

    def _reasons(self, root: nn.Module) -> Iterator[str]:
        for module, path in self.listed.items():
            kind = type(module)
            if not self.takes_rows(kind) or getattr(module, "lora_variant", None):
                where = path or "the model"
                yield f"{where}, a {type_name(kind)} that does not declare packed rows"
        for module, path in self.listed.items():
            reason = why_watched(module)
            if reason is not None:
                yield f"{reason} of {path or type(root).__name__}"

    def takes_rows(self, kind: type) -> bool:
        """Whether packed rows may go through modules of this class."""
        return takes_rows(kind)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()  # a copy or a pickle has modules of its own


def _names(kind: Any) -> Iterator[str]:
    """The methods of a class through which packed rows go."""
    yield "forward"
    yield from (each.__name__ for each in getattr(kind, "takes_packed", ()))


def takes_rows(kind: type) -> bool:
    """Whether a class of modules declares that it takes packed rows."""
    forward: Any = kind.forward  # type: ignore[attr-defined]  # all are modules
    if forward in BY_ROW or kind.__module__ == "transformers.activations":
        return True
    declared = getattr(kind, "takes_packed", ())
    if declared:
        return all(_bare(getattr(kind, each.__name__)) is _bare(each) for each in declared)
    return type_name(kind) in LORA


def _bare(method: Any) -> Any:
    """A method without the wrapper that transformers 5.24 puts around the `forward` of a layer."""
    while method.__code__.co_name == "forward_with_checkpointing":
        method = method.__wrapped__
    return method


def why_watched(module: nn.Module) -> str | None:
    """The code that reads this module's states, if any: a hook, or another `forward`."""
    hooks = chain.from_iterable(map(dict.values, _hooks(vars(module))))
    if hooks_of_all._has_any_global_hook() or not all(map(_moves_weights, hooks)):
        return "a hook"
    if "forward" in vars(module):
        # accelerate's wrappers. The last one converts results of a whole model.
        wrapper = vars(module).get("_hf_hook")
        if not _moves_weights(wrapper) and "_original_forward" not in vars(module):
            return "another forward"
    return None


def _is_hooked(module: nn.Module) -> bool:
    return any(_hooks(vars(module))) or "forward" in vars(module)


def _moves_weights(hook: Any) -> bool:
    """Whether a hook is one of `MOVERS`."""
    if type_name(type(hook)) == "accelerate.hooks.SequentialHook":
        return all(map(_moves_weights, hook.hooks))
    hook = getattr(hook, "func", hook)  # of a `functools.partial`
    owner = getattr(hook, "__self__", hook)
    home = getattr(owner, "__module__", None) or ""
    return home.startswith(MOVERS)


def _walk(module: nn.Module, path: str = "") -> Iterator[tuple[nn.Module, str]]:
    """The modules through which states go, with their paths."""
    yield module, path
    for name, child in module._modules.items():
        # torch's parametrizations compute weights.
        if child is not None and name != "parametrizations":
            yield from _walk(child, f"{path}.{name}".lstrip("."))


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
    def of(cls, layout: Layout, left: Any, pooler: Any, cache: Any) -> "Encoded":
        """Selects the states that the caller reads from the encoder's output, `left`."""
        states, is_packed = left.last_hidden_state, layout.route.is_packed
        index, visible, first = layout.read()
        starts = states  # (B or R, 1 or S, D), of which a pooler reads [:, 0]
        if first is not None:
            starts = (states if is_packed else states[0]).index_select(0, first)[:, None]
        if is_packed and index is None:
            states = states.unflatten(0, layout.shape)
            starts = states if first is None else starts
        elif visible is not None:
            states, index = states[visible], index[visible]  # type: ignore[index]
        encoded = cls(states, index, layout.shape, None if pooler is None else pooler(starts))
        encoded.mask, encoded.cache = None if is_packed else layout.mask, cache
        encoded.attentions = getattr(left, "attentions", None)
        encoded.cross_attentions = getattr(left, "cross_attentions", None)
        # None for states that were not requested.
        encoded.hidden_states = all_states = getattr(left, "hidden_states", None)
        if all_states is not None and all_states[-1] is not None:
            # Both outputs are the same tensor, so that they have the same gradient.
            if is_packed:
                encoded.states, encoded.index = all_states[-1], None
            else:
                encoded.hidden_states = (*all_states[:-1], states)
        return encoded

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
