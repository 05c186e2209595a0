"""Runs this package's encoder on the parts of a stock model, over packed rows.

The stock model keeps its object, class, modules, parameters and heads. `Forward` replaces the
`forward` of its bare model. It computes with a `FamilyModel`, a `BertModel` whose linear layers,
norms, embeddings and dropouts are the stock model's own. It calls stock's `forward` where stock's
modules are needed, for example for attention weights, hooks on inner modules, or a compiler.

Notation: B batch, S sequence, T computed tokens (see `model/layout.py`), D hidden size, H heads.
"""

import inspect
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate
from math import log
from operator import attrgetter
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from hf_bert_impl.errors import InputError
from hf_bert_impl.families.table import FIELDS, LAYER, Family, family_of
from hf_bert_impl.model.configuration_bert import BertConfig
from hf_bert_impl.model.inputs import TOTALS, Inputs, check_positions
from hf_bert_impl.model.kernels import Kernels
from hf_bert_impl.model.layout import Encoded, Layout, Wanted, plan, scatter
from hf_bert_impl.model.linear import computed_by, linear, type_name
from hf_bert_impl.model.losses import IGNORE_INDEX
from hf_bert_impl.model.modeling_bert import BertModel
from hf_bert_impl.model.preparing import drop_prepared, prepared_kernels
from hf_bert_impl.model.route import Inside, Route, takes_rows, why_watched

#: Number of buckets of MPNet's relative positions, and the distance where the last one begins.
BUCKETS, FARTHEST = 32, 128
#: The argument for positions that extend a multi-vector query (see `BertModel.forward`).
EXPANSIONS = "query_expansion_positions"
#: Arguments of a bare model's `forward` that packed rows support, or that have no effect.
_SERVED = {
    *("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds"),
    *("output_hidden_states", "return_dict", "use_cache", "num_items_in_batch", EXPANSIONS),
    *TOTALS,
}
#: Endings of the class names of heads that compute each token alone.
TOKEN_HEADS = ("ForMaskedLM", "ForTokenClassification", "ForPreTraining")
TEXT_HEAD = "ForSequenceClassification"
_REPLICATE = "_replicate_for_data_parallel"


@dataclass
class Reading:
    """The states that a head reads."""

    #: (B, S) for tokens; some may be at padding.
    labels: Tensor | None
    #: Whether it reads all positions.
    reads_all: bool
    #: Whether it computes each token alone.
    by_token: bool
    #: Whether it reads the first token of each text only.
    by_text: bool
    #: Whether it supports states (1, N, D) of tokens in place of (B, S, D).
    takes_rows: bool
    #: The arguments of packed input, which MPNet's heads do not pass on.
    totals: dict[str, Any]
    #: The places of those tokens, after the bare model returned them.
    encoded: Encoded | None = None


#: The states that the calling head reads; None without a head.
_reading: ContextVar[Reading | None] = ContextVar("reading", default=None)


class FamilyEmbeddings(nn.Module):
    """The normalised sum of word, position and token-type embeddings; ELECTRA's are projected."""

    adds_positions = True

    def forward(
        self,
        input_ids: Tensor | None,
        token_type_ids: Tensor | None,
        position_ids: Tensor | None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """(T,) ids, or (T, D) word embeddings, to (T, D). The default positions are 0, 1, 2, …"""
        own: Any = self._modules
        states: Any = own["word_embeddings"](input_ids) if inputs_embeds is None else inputs_embeds
        if "token_type_embeddings" in own:
            if token_type_ids is None:
                token_type_ids = torch.zeros(1, dtype=torch.long, device=states.device)
            states = states + own["token_type_embeddings"](token_type_ids)
        if position_ids is None:
            position_ids = torch.arange(len(states), device=states.device)
        states = states + own["position_embeddings"](position_ids)
        states = own["dropout"](own["LayerNorm"](states))
        return linear(own["projection"], states) if "projection" in own else states

    takes_packed = (forward,)


class Parts(Inside):
    """The modules of a stock model, and the reason why they need padded input."""

    def __init__(self, model: "FamilyModel") -> None:
        super().__init__()
        self.model = model

    def why_padded(self, root: nn.Module) -> str | None:
        """As `Inside`, for the stock model; after a change, `model` takes its parts again."""
        return super().why_padded(self.model.stock)

    def _list(self, root: nn.Module) -> None:
        super()._list(root)
        if self.reason is None:
            self.reason = self.model.attach()

    def takes_rows(self, kind: type) -> bool:
        """Whether modules of this class support packed rows, or are bypassed."""
        return kind.__module__ in self.model.family.homes or takes_rows(kind)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model,)


class FamilyModel(BertModel):
    """A `BertModel` made of the parts of a stock model, outside that model's tree.

    Args:
        bare: The stock model, without a head.
        family: Its family.
    """

    #: A module with the stock model's children, but without its `forward`.
    stock: Any
    #: The stock model's embedding of relative positions, if any.
    relative_bias: nn.Module | None

    def __init__(self, bare: Any, family: Family) -> None:
        names = {name: family.fields.get(name, name) for name in FIELDS}
        if not family.has_token_types:
            del names["type_vocab_size"]
        settings = {name: getattr(bare.config, theirs) for name, theirs in names.items()}
        with torch.device("meta"):
            super().__init__(BertConfig(**settings), getattr(bare, "pooler", None) is not None)
        self.family = family
        self.bare_config = bare.config
        self.padding_idx: Any = getattr(bare.embeddings, "padding_idx", None)
        # `nn.Module.__setattr__` would make them parts of this model.
        self.__dict__ |= {"stock": nn.Module(), "relative_bias": None}
        self.stock.__dict__["_modules"] = bare._modules
        self.embeddings: Any = FamilyEmbeddings()
        self._inside = Parts(self)
        self.eval()  # for dropouts that stock lacks; the others have the stock model's mode

    def attach(self) -> str | None:
        """Takes the current parts of the stock model.

        Returns:
            The reason why that is not possible, or None.
        """
        family, stock = self.family, self.stock
        try:
            layers = attrgetter(family.layers)(stock)
            if len(layers) != len(self.encoder.layer):
                return f"{len(layers)} layers, and {len(self.encoder.layer)} by its config"
            for own, theirs in zip(self.encoder.layer, layers, strict=True):
                _take(own, theirs, zip(LAYER, family.layer, strict=True))
            names = ["word_embeddings", "position_embeddings", "LayerNorm", "dropout"]
            names += ["token_type_embeddings"] * family.has_token_types
            _take(self.embeddings, stock.embeddings, ((name, name) for name in names))
            if family.projection in stock._modules:
                _take(self.embeddings, stock, [("projection", family.projection)])
            if self.pooler is not None:
                _take(self.pooler, stock.pooler, (("dense", "dense"), ("activation",) * 2))
            if family.relative_bias:
                self.__dict__["relative_bias"] = attrgetter(family.relative_bias)(stock)
        except AttributeError as error:
            return f"missing parts ({error})"
        taken = set(stock.modules())
        # Dropouts that stock lacks stay in eval mode.
        self.containers = [part for part in self.modules() if part._modules and part not in taken]
        return None

    def encode(self, given: dict[str, Any]) -> Encoded | None:
        """Computes the states of a call with packed rows.

        Args:
            given: The arguments of stock's `forward`.

        Returns:
            None if the call needs stock's `forward`.

        Raises:
            ValueError: The input does not fit the model, or a call that needs stock's `forward`
                has packed input or is batch-invariant.
        """
        self._follow()
        reason = self._why_stock(given)
        if reason is None:
            inputs = self.inputs(given)
            hidden_states = given.get("output_hidden_states")
            if hidden_states is None:
                hidden_states = self.bare_config.output_hidden_states
            requests = self._requests(None, hidden_states or False, False)
            route = self._route(inputs, None, True, False, False)
            if route.is_packed:
                wanted = self._complete(self._required(inputs, given), False, inputs, route)
                layout = plan(inputs, wanted, route)
                has_bias = self.relative_bias is None or self._add_bias(layout)
                if not (has_bias or self.config.batch_invariant):
                    layout, has_bias = self._grid_with_bias(inputs, wanted), True
                if has_bias and layout.route.is_packed:
                    with computed_by(self._inside.products(self, self.config.batch_invariant)):
                        return self._encode_packed(inputs, layout, requests, {})
                reason = "a mask with holes, or a row without tokens"
            elif inputs.is_packed:
                reason = self._why_padded(inputs, True, False)
        if given.get("cu_seq_lens_q") is not None:
            raise InputError(
                f"packed input cannot be used with {reason}. Pass one row for each text."
            )
        if self.config.batch_invariant:
            self._check_batch_invariant(reason, True, self.device)
        return None

    def _add_bias(self, layout: Layout) -> bool:
        """Adds relative positions to a layout if all its sequences can share them."""
        if layout.route not in (Route.ROWS, Route.SINGLE) or not _is_gapless(layout):
            return False
        longest = max(group.queries for group in layout.groups)
        layout.bias = relative_bias(self.relative_bias, longest)
        return True

    def _grid_with_bias(self, inputs: Inputs, wanted: Wanted) -> Layout:
        """A layout whose tokens attend in the padded batch, by their original positions."""
        layout = plan(inputs, wanted._replace(is_eager=True), Route.GRID)
        bias = relative_bias(self.relative_bias, layout.grid[1])[None]
        if layout.mask is not None:
            is_padding = layout.mask.to(bias.device) == 0
            bias = bias.masked_fill(is_padding[:, None, None], torch.finfo(bias.dtype).min)
        layout.mask = bias  # (1 or R, H, L, L)
        return layout

    def _follow(self) -> None:
        """Copies the settings that may change in the stock model's config."""
        theirs, own = self.bare_config, self.config
        own.vocab_size = theirs.vocab_size
        own.max_position_embeddings = theirs.max_position_embeddings
        own.padding_free = getattr(theirs, "padding_free", True)
        own.batch_invariant = getattr(theirs, "batch_invariant", False)
        # MPNet has no other attention than "eager", which gives the same numbers as "sdpa".
        backend = "sdpa" if self.family.relative_bias else theirs._attn_implementation
        if own._attn_implementation != backend:
            own._attn_implementation = backend

    def _why_stock(self, given: dict[str, Any]) -> str | None:
        """The reason why a call needs stock's `forward`, whatever its batch is, or None."""
        for name in given.keys() - _SERVED:
            if given[name] is not None and given[name] is not False:
                return f"the argument {name}"
        if self.bare_config.output_attentions:
            return "output_attentions"
        reading = _reading.get()
        is_packed = given.get("cu_seq_lens_q") is not None
        if is_packed and reading is not None and not (reading.by_token or reading.by_text):
            return "a head of transformers that takes a row for each text"
        if self.config.batch_invariant and reading is not None:
            return "a head of transformers"
        if given.get("inputs_embeds") is not None and "projection" in self.embeddings._modules:
            return "inputs_embeds, which stock projects"
        reason = self._inside.why_padded(self)
        if reason is not None:
            return reason
        states = self._inside.states[1:]  # without `stock` itself
        is_training = states[0]["training"]
        if any(state["training"] is not is_training for state in states):
            return "modules in train mode beside others in eval mode"
        if is_training and any(state.get("gradient_checkpointing") for state in states):
            return "gradient checkpointing"
        if self.training is not is_training:
            for part in self.containers:
                part.training = is_training
        return None

    def inputs(self, given: dict[str, Any]) -> Inputs:
        """The batch of a call, checked, with its positions."""
        ids, embeddings, places = (
            given.get(name) for name in ("input_ids", "inputs_embeds", "position_ids")
        )
        counts = self.family.counts_positions and places is None
        if counts and ids is not None and ids.ndim == 2:
            # They are counted below. Zeros avoid the check of positions 0, 1, 2, …
            places = torch.zeros((1, ids.shape[1]), dtype=torch.long, device=ids.device)
        types = given.get("token_type_ids") if self.family.has_token_types else None
        batch = (ids, given.get("attention_mask"), types, places, embeddings)
        inputs = Inputs.of(self.config, *batch, given)
        if counts:
            inputs.position_ids = self._positions(inputs)
        return inputs

    def _positions(self, inputs: Inputs) -> Tensor:
        """(B, S) positions, counted over the tokens of each sequence except padding.

        Padding has `padding_idx`. As upstream, `inputs_embeds` have no padding.

        Raises:
            ValueError: A sequence is longer than the table.
        """
        padding, shape, device = self.padding_idx, inputs.shape, inputs.device
        if inputs.input_ids is None:
            is_token = torch.ones(shape, dtype=torch.long, device=device)
        else:
            is_token = inputs.input_ids.ne(padding).long()
        count = is_token.cumsum(dim=1)
        if inputs.lengths is not None and len(inputs.lengths) > 1:
            starts = torch.tensor([0, *accumulate(inputs.lengths[:-1])], device=device)
            before = (count - is_token)[0, starts]
            lengths = torch.tensor(inputs.lengths, device=device)
            count = count - before.repeat_interleave(lengths)
        limit = self.config.max_position_embeddings - padding - 1
        if device.type == "cpu" and not inputs.is_traced and int(count.max()) > limit:
            raise ValueError(
                f"the sequence has {int(count.max())} tokens. The model takes at most {limit} (its "
                f"{self.config.max_position_embeddings} positions begin at {padding + 1}). Use "
                f"tokenizer(..., truncation=True, max_length={limit})."
            )
        return count * is_token + padding

    def _required(self, inputs: Inputs, given: dict[str, Any]) -> Tensor | None:
        """(B, S) bool: positions that are read even if the mask excludes them."""
        expansions = {EXPANSIONS: given.get(EXPANSIONS)}
        required, reading = check_positions(inputs.shape, **expansions), _reading.get()
        if reading is None or inputs.has_padding is False:
            return required
        read = torch.full(inputs.shape, reading.reads_all, device=inputs.device)
        read[:, 0] = True
        if reading.labels is not None and reading.labels.shape == inputs.shape:
            read |= (reading.labels != IGNORE_INDEX).to(read.device)
        return read if required is None else read | required


def _take(own: nn.Module, theirs: nn.Module, paths: Iterable[tuple[str, str]]) -> None:
    """Puts parts of a stock module into one of this package, except for empty paths."""
    for path, their_path in paths:
        if their_path:
            holder, _, name = path.rpartition(".")
            place = attrgetter(holder)(own) if holder else own
            setattr(place, name, attrgetter(their_path)(theirs))


def _is_gapless(layout: Layout) -> bool:
    """Whether each sequence attends to all of its tokens, and they are adjacent in their row."""
    if any(group.queries != group.keys for group in layout.groups):
        return False
    if layout.token_index is None or layout.order:
        return True
    assert layout.column is not None
    lengths = [group.queries for group in layout.groups for _ in range(group.rows)]
    if len(lengths) < layout.shape[0]:
        return False
    ends = list(accumulate(lengths))
    first, last = layout.column[[0, *ends[:-1]]], layout.column[[end - 1 for end in ends]]
    return (last - first + 1).tolist() == lengths


def relative_bias(embedding: Any, length: int) -> Tensor:
    """(H, L, L), the term of relative positions in the scores (Raffel et al. 2020, section 2.1).

    Args:
        embedding: The embedding of MPNet's buckets, (buckets, H).
        length: L.
    """
    of_distance: Tensor = embedding(buckets(length, embedding.weight.device))  # (2·L - 1, H)
    # Row i of the windows has the keys of query L - 1 - i.
    return of_distance.t().unfold(1, length, 1).flip(1)


@cache
@torch.inference_mode(False)  # a later call may record gradients
def buckets(length: int, device: torch.device) -> Tensor:
    """(2·L - 1,) the buckets of key minus query, from 1 - L to L - 1.

    Half of the buckets are for keys after the query. In each half, the first half has a bucket per
    distance. The others grow with the logarithm of the distance, up to `FARTHEST`.
    """
    distance = torch.arange(1 - length, length, device=device)
    far, half, exact = distance.abs(), BUCKETS // 2, BUCKETS // 4
    steps = (far.float() / exact).log() / log(FARTHEST / exact) * (half - exact)
    grown = exact + steps.long()
    bucket = torch.where(far < exact, far, grown.clamp(max=half - 1))
    return bucket + half * (distance > 0)


class _InPlace:
    """Replaces the `forward` of a stock model, with the same signature."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.names = list(self.__signature__.parameters)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(type(self.model).forward.__get__(self.model))

    @property
    def __code__(self) -> CodeType:
        """As of the model's own `forward`; `torch.export` reads it."""
        code: CodeType = type(self.model).forward.__code__
        return code

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call, by name."""
        if args and args[0] is self.model:  # accelerate's `unwrap_model` binds it as a method
            args = args[1:]
        return dict(zip(self.names, args, strict=False)) | kwargs

    def stock(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own `forward`."""
        return type(self.model).forward(self.model, *args, **kwargs)


class Forward(_InPlace):
    """Replaces a bare model's `forward`."""

    def __init__(self, model: Any, family: Family) -> None:
        super().__init__(model)
        self.own = FamilyModel(model, family)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the output of stock's `forward`, with zeros at padding."""
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return self.stock(*args, **kwargs)
        reading = _reading.get()
        given = self.arguments(args, kwargs)
        given |= {} if reading is None else reading.totals
        returns_dict = given.get("return_dict")
        if returns_dict is None:
            returns_dict = self.model.config.return_dict
        encoded = self.own.encode(given)
        if encoded is None:
            given.pop(EXPANSIONS, None)
            return self.stock(**given)
        if reading is not None and reading.takes_rows and encoded.index is not None:
            reading.encoded, states = encoded, encoded.states[None]
        else:
            states = encoded.pad(encoded.states)
        if reading is not None and reading.by_text and "cu_seq_lens_q" in given:
            states = states[0, given["cu_seq_lens_q"][:-1].long()][:, None]  # (R, 1, D)
        output = {"last_hidden_state": states, "hidden_states": encoded.hidden_states}
        if encoded.pooled is not None:
            output["pooler_output"] = encoded.pooled
        result = self.own.family.output(**output)
        if returns_dict:
            return result
        values = result.to_tuple()
        if encoded.pooled is None and self.own.family.keeps_pooled_in_tuples:
            return (values[0], None, *values[1:])
        return values


class HeadForward(_InPlace):
    """Replaces the `forward` of a model with a head, to tell `Forward` which states it reads."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the output of stock's `forward`; at padding, of zero states or zero itself."""
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return self.stock(*args, **kwargs)
        given = self.arguments(args, kwargs)
        # The loss of answers compares all positions. ELECTRA's summary may read any position.
        reads_all = given.get("start_positions") is not None
        reads_all |= getattr(self.model.config, "summary_type", "first") != "first"
        name = type(self.model).__name__
        by_token, by_text = name.endswith(TOKEN_HEADS), name.endswith(TEXT_HEAD)
        totals = {name: given[name] for name in TOTALS if name in given}
        takes_rows = by_token and self._takes_rows(given)
        rows = (by_token, by_text, takes_rows, totals)
        reading = Reading(given.get("labels"), reads_all, *rows)
        token = _reading.set(reading)
        try:
            result = self.stock(**given)
        finally:
            _reading.reset(token)
        if reading.encoded is not None:
            index, shape = reading.encoded.index, reading.encoded.shape
            result["logits"] = scatter(result["logits"][0], index, shape)
        return result

    def _takes_rows(self, given: dict[str, Any]) -> bool:
        """Whether states and scores may be (1, N, …) inside the head."""
        model, returns_dict = self.model, given.get("return_dict")
        bare, home = model.base_model, type(model).__module__
        if (
            given.get("labels") is not None
            or not (model.config.return_dict if returns_dict is None else returns_dict)
            or bare._forward_hooks
        ):
            return False
        parts = (
            part
            for child in model.children()
            if child is not bare and not isinstance(child, nn.CrossEntropyLoss)  # DistilBERT's
            for part in child.modules()
        )
        return all(
            (type(part).__module__ == home or takes_rows(type(part))) and not why_watched(part)
            for part in parts
        )


class MaskedLM:
    """The encoder and the head of an optimized masked LM.

    Args:
        model: A model for which `is_masked_lm` is true.
    """

    def __init__(self, model: Any) -> None:
        self.bare = vars(model.base_model)["forward"]
        self.head = [attrgetter(path)(model) for path in self.bare.own.family.masked_lm]

    def encode(self, **given: Any) -> tuple[Encoded, Inputs]:
        """The states that the head reads, and the checked batch; arguments as for `forward`."""
        encoded, inputs = self.bare.own.encode(given), self.bare.own.inputs(given)
        if encoded is None:
            states = self.bare.stock(**given, return_dict=True).last_hidden_state
            encoded = Encoded(states, None, inputs.shape, None)
        return encoded, inputs

    def scores(self, states: Tensor) -> Tensor:
        """(N, D) to (N, V)."""
        for part in self.head:
            states = part(states)
        return states


def is_masked_lm(model: nn.Module) -> bool:
    """Whether `MaskedLM` supports a model."""
    is_ours = isinstance(vars(model).get("forward"), HeadForward)
    return is_ours and type(model).__name__.endswith("ForMaskedLM")


# --- replacing forwards of stock models ----------------------------------------------------------


def has_adapter(model: nn.Module) -> bool:
    """Whether a model is a bare one with a `Forward`."""
    return isinstance(vars(model).get("forward"), Forward)


def forwards(model: nn.Module) -> list[Forward]:
    """The `Forward` objects in a model."""
    forwards = (vars(module).get("forward") for module in model.modules())
    return [forward for forward in forwards if isinstance(forward, Forward)]


def check(model: Any) -> Forward:
    """Checks that `put_in_place` supports a model.

    Args:
        model: A model of a family, with a head or without.

    Raises:
        InputError: Its forward is replaced, or its parts differ from its family's.
    """
    bare, family = model.base_model, family_of(model)
    assert family is not None
    forward = vars(bare).get("forward")
    if isinstance(forward, Forward):
        return forward
    if forward is None and "forward" not in vars(model):
        forward = Forward(bare, family)
        reason = forward.own.attach()
    else:
        reason = "a replaced forward"
    if reason is not None:
        raise InputError(
            f"The {type_name(type(model))} has {reason}. Call optimize before changing a model of "
            f"{family.name}, or undo the change."
        )
    return forward


def put_in_place(model: Any, forward: Forward) -> None:
    """Makes a stock model compute with `forward`, the result of `check`."""
    bare = model.base_model
    vars(bare)["forward"] = forward
    if bare is not model:
        vars(model)["forward"] = HeadForward(model)
    for part in (bare, model):
        vars(part)[_REPLICATE] = partial(_replicate, part)


def _replicate(model: Any) -> Any:
    """Makes a replica for `nn.DataParallel`, which computes with stock's `forward`.

    A replica has its own parameters, and `Forward` would use the original model's.
    """
    replica = getattr(type(model), _REPLICATE)(model)
    del replica.forward
    return replica


def adapt(model: Any, dtype: torch.dtype | str | None) -> Any:
    """Makes a stock model of a family fast for inference, and returns it.

    `optimize` also supports training and saving.

    Raises:
        InputError: As `check`.
    """
    put_in_place(model, check(model))
    prepare(model, dtype)
    return model


def remove(model: Any) -> None:
    """Undoes `put_in_place`."""
    for module in model.modules():
        forward = vars(module).get("forward")
        if isinstance(getattr(forward, "__func__", forward), _InPlace):
            del module.forward, vars(module)[_REPLICATE]
            for part in module.modules():
                vars(part).pop("packed", None)  # `drop` leaves an empty entry


def prepare(model: Any, dtype: torch.dtype | str | None) -> None:
    """`BertPreTrainedModel.prepare_for_inference` for a stock model."""
    model.eval()
    for forward in forwards(model):
        forward.own.prepare_for_inference(dtype)
        model.to(forward.own.dtype)


def kernels_of(model: Any) -> Kernels | None:
    """The kernels of a prepared encoder, of this package or a family; None if not prepared."""
    adapted = forwards(model)
    return prepared_kernels(adapted[0].own if adapted else model)


def drop(model: nn.Module) -> None:
    """Discards the packed weights of a model."""
    for forward in forwards(model):
        drop_prepared(forward.own)
    drop_prepared(model)
