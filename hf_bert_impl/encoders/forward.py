"""Replaces the `forward` of stock encoders and of their heads.

The stock model keeps its object, class, modules, parameters and heads. `Forward` computes a call by
stock's own `forward` on packed rows (`rows.py`), and gives outputs the padded form of stock. Calls
that need padded states go to stock's `forward` as they are: attention weights, hooks on inner
modules, masks of pairs, a compiler or a tracer.

Notation: B batch, S sequence, T computed tokens, N tokens of packed texts, D hidden size.
"""

import inspect
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput

from hf_bert_impl.encoders.inside import StockInside, is_transformed
from hf_bert_impl.encoders.rows import ROWS, NotByRows, Rows
from hf_bert_impl.errors import InputError
from hf_bert_impl.model.configuration_bert import BertConfig
from hf_bert_impl.model.inputs import TOTALS, Inputs, lengths_of_totals
from hf_bert_impl.model.layout import Encoded, Layout, plan
from hf_bert_impl.model.linear import computed_by
from hf_bert_impl.model.losses import IGNORE_INDEX
from hf_bert_impl.model.route import Route, why_watched

#: The argument for positions that extend a multi-vector query: they are read, though masked.
EXPANSIONS = "query_expansion_positions"
#: Labels that a head compares with its scores.
LABELS = (
    *("labels", "start_positions", "end_positions", "next_sentence_label"),
    "sentence_order_label",
)
#: Arguments that packed rows support, or that have no effect.
_SERVED = {
    *("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds"),
    *("output_hidden_states", "return_dict", "use_cache", "num_items_in_batch", *LABELS),
}
_REPLICATE = "_replicate_for_data_parallel"
#: How the states of the bare model reach a head: as packed rows, or padded with the first token of
#: each row, or padded with all tokens.
BY_ROWS, BY_FIRST, BY_ALL = "rows", "first", "all"


class Reading(NamedTuple):
    """The padded states that a head reads."""

    reads_all: bool
    labels: Tensor | None


#: What the head that calls a bare model reads; None without a head.
_reading: ContextVar[Reading | None] = ContextVar("reading", default=None)
#: States that a bare model returns instead of computing them (see `MaskedLM`).
_states: ContextVar[Tensor | None] = ContextVar("states", default=None)


class Forward:
    """Replaces the `forward` of a stock model, with the same signature.

    Args:
        model: A bare encoder, or one with a head.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.bare: Any = model.base_model
        self.names = list(self.__signature__.parameters)
        # Models of older releases add the dimension of heads to a mask themselves.
        code: CodeType = inspect.unwrap(type(self.bare).forward).__code__
        self.mask_shape = (1,) * (3 if "get_extended_attention_mask" in code.co_names else 4)
        self.inside = StockInside(model, self.bare)
        #: `BY_ROWS`, `BY_FIRST` or `BY_ALL`, by the probe.
        self.reads = BY_ROWS
        #: False computes all tokens by stock's `forward`.
        self.skips_padding = True
        #: Linear layers that get the same states, by the module that holds them: their names.
        self.together: list[tuple[nn.Module, tuple[str, ...]]] = []

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(type(self.model).forward.__get__(self.model))

    @property
    def __code__(self) -> CodeType:
        """As of the model's own `forward`; `torch.export` reads it."""
        code: CodeType = type(self.model).forward.__code__
        return code

    @property
    def is_bare(self) -> bool:
        """Whether the model has no head."""
        return self.model is self.bare

    def stock(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own `forward`."""
        return type(self.model).forward(self.model, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the output of stock's `forward`, with zeros at padding."""
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return self.stock(*args, **kwargs)
        if args and args[0] is self.model:  # accelerate's `unwrap_model` binds it as a method
            args = args[1:]
        given = dict(zip(self.names, args, strict=False)) | kwargs
        if self.is_bare and (states := _states.get()) is not None:
            return BaseModelOutput(last_hidden_state=states)
        reason = self.inside.why_stock()
        with computed_by(self.inside.layers()):
            rows = ROWS.get()
            if rows is not None:  # of the head that calls this bare model
                return self._in_rows(rows, given)
            return self._compute(given, reason)

    def _compute(self, given: dict[str, Any], reason: str | None) -> Any:
        """A call of padded or packed texts; `reason` is why the modules need padded states."""
        totals = {name: given.pop(name, None) for name in TOTALS}["cu_seq_lens_q"]
        expansions = given.pop(EXPANSIONS, None)
        reading = _reading.get()
        if reading is not None and reading.reads_all:
            reason = "a head that reads padding"
        reason = reason or self.why_stock(given)
        lengths = None
        if totals is not None:
            lengths = lengths_of_totals(tuple(_source(given).shape[:2]), None, totals, False)
            given.pop("attention_mask", None)
        if self.reads == BY_ROWS and reason is None:
            try:
                output = self.by_rows(given, lengths, expansions)
            except NotByRows:
                output = None
            if output is not None:
                return output
        if lengths is not None:
            return self._spread(given, lengths)
        if self.is_bare:
            if getattr(self.bare.config, "batch_invariant", False):
                raise InputError(
                    f"batch_invariant=True cannot be used with {reason or 'a row without tokens'}. "
                    "Leave it out, or set batch_invariant=False.",
                    "batch_invariant",
                )
            return self.stock(**given)
        reads_all = reason is not None or self.reads == BY_ALL
        token = _reading.set(Reading(reads_all, given.get("labels")))
        try:
            return self.stock(**given)
        finally:
            _reading.reset(token)

    def why_stock(self, given: dict[str, Any]) -> str | None:
        """The reason why the arguments of a call, or the bare model, need padded states."""
        for name in given.keys() - _SERVED:
            if given[name] is not None and given[name] is not False:
                return f"the argument {name}"
        labels = [given[name] for name in LABELS if given.get(name) is not None]
        if self.reads != BY_ROWS:  # the bare model decides
            return "labels of whole rows" if "start_positions" in given and labels else None
        ids, mask = given.get("input_ids"), given.get("attention_mask")
        source = _source(given)
        if not isinstance(source, Tensor) or source.ndim != (3 if ids is None else 2):
            return "its input"
        shape, config = source.shape[:2], self.bare.config
        if not source.numel() or (ids is not None and given.get("inputs_embeds") is not None):
            return "its input"
        if mask is not None and (not isinstance(mask, Tensor) or mask.shape != shape):
            return "a mask that is not (batch, sequence)"
        if any(label.shape[:2] != shape for label in labels):
            return "labels of whole rows"
        if is_transformed():
            return "a transformation of torch"
        if not (self.skips_padding and getattr(config, "padding_free", True)):
            return "padding that is read"
        if config.output_attentions:
            return "attention weights"
        if getattr(config, "chunk_size_feed_forward", 0):
            return "chunks of the feed-forward layer"
        if self.is_bare:
            return None
        inside = getattr(vars(self.bare)["forward"], "inside", None)
        return why_watched(self.bare) or (inside.why_stock() if inside else "another forward")

    def by_rows(
        self,
        given: dict[str, Any],
        lengths: list[int] | None = None,
        expansions: Tensor | None = None,
    ) -> Any:
        """The output of a call by packed rows; None if a sequence has no tokens.

        Args:
            given: The arguments of stock's `forward`.
            lengths: Of packed texts.
            expansions: (B, S), not zero where a masked token is read.
        """
        given = dict(given)
        returns_dict = given.pop("return_dict", None)
        if returns_dict is None:
            returns_dict = self.model.config.return_dict
        if not getattr(self.bare.config, "batch_invariant", False):
            output = self._by_rows(given, lengths, expansions)
        elif self.is_bare and _reading.get() is None:
            output = self._apart(given, lengths, expansions)
        else:
            raise InputError(
                "batch_invariant=True cannot be used with a head of transformers. Compute one text "
                "per call, or set batch_invariant=False.",
                "batch_invariant",
            )
        return output if returns_dict or output is None else output.to_tuple()

    def _by_rows(
        self, given: dict[str, Any], lengths: list[int] | None, expansions: Tensor | None
    ) -> Any:
        layout = self._plan(given, lengths, expansions)
        if layout is None:
            return None
        rows = Rows(layout, self._positions(layout, given))
        if self.is_bare:  # `_in_rows` gives another one
            given.pop("attention_mask", None)
        picked = {}
        for name, value in given.items():
            if isinstance(value, Tensor) and value.shape[:2] in (
                layout.shape,
                (1, layout.shape[1]),
            ):
                value = layout.unpad(value)[None]
            picked[name] = value
        token = ROWS.set(rows)
        try:
            output = self._in_rows(rows, picked | {"return_dict": True})
        finally:
            ROWS.reset(token)
        pooled, first = output.get("pooler_output"), layout.first_token
        if pooled is not None and (first is not None or layout.shape[0] > 1):
            states = output.last_hidden_state
            starts = layout.pad(states[0]) if first is None else states[0, first][:, None]
            output["pooler_output"] = self.bare.pooler(starts)
        shape = (1, layout.tokens + layout.spare)

        def pad(value: Tensor) -> Tensor:
            return layout.pad(value[0]) if value.shape[:2] == shape else value

        for name, value in output.items():
            if name != "pooler_output":
                output[name] = _each(pad, value)
        return output

    def _plan(
        self, given: dict[str, Any], lengths: list[int] | None, expansions: Tensor | None
    ) -> Layout | None:
        """The computed tokens of a batch, or None if a sequence has none."""
        ids, mask = given.get("input_ids"), given.get("attention_mask")
        source = _source(given)
        shape, device = (source.shape[0], source.shape[1]), source.device
        wanted: dict[str, Any] = {"first_token": True}
        mask = None if mask is None else mask.to(device) != 0
        has_padding = mask is not None and not bool(mask.all())
        if mask is not None and has_padding:
            reading, labels = _reading.get(), given.get("labels")
            if reading is not None:
                labels = reading.labels
            required = torch.zeros_like(mask)
            if reading is not None:
                required[:, 0] = True
            if expansions is not None:
                required |= expansions.to(device) != 0
            if labels is not None and labels.shape == shape:
                required |= labels.to(device) != IGNORE_INDEX
            padding = getattr(self.bare.config, "pad_token_id", None)
            # As in our BERT, a masked token that is no pad token has stock's states.
            others = None if ids is None or padding is None else ids - padding
            has_pooler = self.is_bare and getattr(self.bare, "pooler", None) is not None
            wanted = {"required": required, "not_padding": others}
            wanted["first_token"] = has_pooler or reading is not None
        inputs = Inputs(None, mask, None, None, None, shape, device, False, lengths)
        inputs.has_padding = has_padding
        wanted["fills"] = all(given.get(name) is None for name in LABELS)  # a loss would count it
        layout = plan(inputs, Route.ROWS, is_eager=True, **wanted)
        return layout if layout.route is Route.ROWS else None

    def _apart(
        self, given: dict[str, Any], lengths: list[int] | None, expansions: Tensor | None
    ) -> Any:
        """Computes each sequence alone, so that its bits do not depend on the batch."""
        given = given | {EXPANSIONS: expansions}
        shape = _source(given).shape[:2]
        sizes, dim = (lengths, 1) if lengths else ([1] * shape[0], 0)
        columns = {
            name: value.expand(*shape, *value.shape[2:]).split(sizes, dim)
            if _has_tokens(value, shape)
            else [value] * len(sizes)
            for name, value in given.items()
        }
        outputs = []
        for values in zip(*columns.values(), strict=True):
            one = dict(zip(columns, values, strict=True))
            expansions = one.pop(EXPANSIONS)
            outputs.append(self._by_rows(one, None, expansions))
        if any(output is None for output in outputs):
            return None

        whole = outputs[0]
        for name in whole:
            parts = [output[name] for output in outputs]
            whole[name] = _joined(parts, 0 if name == "pooler_output" else dim)
        return whole

    def _in_rows(self, rows: Rows, given: dict[str, Any]) -> Any:
        """Stock's `forward` on packed rows, at their positions."""
        if self.is_bare:
            # Masks of four dimensions go to the attention function as they are. NaN shows a module
            # that reads the mask in another way.
            device = rows.layout.device
            given["attention_mask"] = torch.full(self.mask_shape, torch.nan, device=device)
            if rows.positions is not None and "position_ids" in self.names:
                given["position_ids"] = rows.positions
        elif rows.positions is not None:
            given.pop("position_ids", None)
        return self.stock(**given)

    def _positions(self, layout: Layout, given: dict[str, Any]) -> Tensor | None:
        """(1, T) positions as the model counts them in the padded batch; None for its own."""
        places, ids = given.get("position_ids"), given.get("input_ids")
        if places is not None:
            rows: Tensor = layout.unpad(places)
            return rows[None]
        column = layout.column
        if column is None and layout.spare:  # one sequence
            column = torch.arange(layout.tokens, device=layout.device)
            column = nn.functional.pad(column, (0, layout.spare))
        if column is None:
            return None
        # The bare model's own `forward` may be wrapped by the caller.
        bare: Forward = self if self.is_bare else vars(self.bare)["forward"]
        padding = bare.inside.counts_from
        if padding is None:
            return column[None]
        if ids is None:
            return column[None] + padding + 1
        is_token = ids.ne(padding).long()
        if layout.order:  # of packed texts, each counts its own
            is_token = layout.unpad(is_token.view(layout.shape))
            count = is_token.cumsum(0)
            begin = torch.arange(len(count), device=layout.device) - column
            count = count - (count - is_token)[begin]
        else:
            count, is_token = layout.unpad(is_token.cumsum(1)), layout.unpad(is_token)
        return (count * is_token + padding)[None]

    def _spread(self, given: dict[str, Any], lengths: list[int]) -> Any:
        """The output of packed texts, (1, N, …) for each token, by a call of a padded batch."""

        def pad(value: Any, fill: int = 0) -> Any:
            if not isinstance(value, Tensor) or value.shape[:2] != (1, sum(lengths)):
                return value
            return pad_sequence(value[0].split(lengths), batch_first=True, padding_value=fill)

        spread = {
            name: pad(value, IGNORE_INDEX if name == "labels" else 0)
            for name, value in given.items()
        }
        source = _source(given)
        mask = pad(torch.ones(source.shape[:2], dtype=torch.long, device=source.device))
        return _each(
            lambda value: value[mask != 0][None] if value.shape[:2] == mask.shape else value,
            self(**spread, attention_mask=mask),
        )


class MaskedLM:
    """The encoder and the head of an optimized masked LM.

    Args:
        model: A model for which `is_masked_lm` is true.
    """

    def __init__(self, model: Any) -> None:
        self.model, self.bare = model, vars(model.base_model)["forward"]

    def encode(self, **given: Any) -> tuple[Encoded, Inputs]:
        """The states that the head reads, and the checked batch; arguments as for `forward`."""
        config = BertConfig(
            vocab_size=self.bare.model.get_input_embeddings().weight.shape[0],
            max_position_embeddings=1 << 31,
        )
        names = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds")
        ids, mask, types, places, embeddings = (given.get(name) for name in names)
        inputs = Inputs.of(config, ids, mask, types, places, embeddings, given)
        states = self.bare(**given, return_dict=True).last_hidden_state
        return Encoded(states, None, inputs.shape, None), inputs

    def scores(self, states: Tensor) -> Tensor:
        """(N, D) to (N, V)."""
        forward = vars(self.model)["forward"]
        forward.inside.why_stock()
        token = _states.set(states[None])
        try:
            ids = torch.zeros(1, len(states), dtype=torch.long, device=states.device)
            with computed_by(forward.inside.layers()):
                scores: Tensor = forward.stock(ids, return_dict=True).logits[0]
            return scores
        finally:
            _states.reset(token)


def is_masked_lm(model: nn.Module) -> bool:
    """Whether `MaskedLM` supports a model."""
    return has_forward(model) and type(model).__name__.endswith("ForMaskedLM")


def _source(given: dict[str, Any]) -> Any:
    """The ids of a call, or the embeddings in their place."""
    ids = given.get("input_ids")
    return given.get("inputs_embeds") if ids is None else ids


def _has_tokens(value: Any, shape: tuple[int, ...]) -> bool:
    """Whether an argument has a value for each token of (B, S), or of (1, S) for all rows."""
    return isinstance(value, Tensor) and value.shape[:2] in (shape, (1, shape[1]))


def _each(convert: Callable[[Tensor], Tensor], output: Any) -> Any:
    """Converts the tensors of an output."""
    if isinstance(output, Tensor):
        return convert(output)
    if isinstance(output, tuple):
        return tuple(_each(convert, value) for value in output)
    if isinstance(output, ModelOutput):
        for name, value in output.items():
            output[name] = _each(convert, value)
    return output


def _joined(parts: Sequence[Any], dim: int) -> Any:
    """The outputs of texts, end to end."""
    if isinstance(parts[0], tuple):
        return tuple(_joined(values, dim) for values in zip(*parts, strict=True))
    return None if parts[0] is None else torch.cat(tuple(parts), dim)


# --- replacing forwards of stock models ----------------------------------------------------------


def forwards(model: nn.Module) -> list[Forward]:
    """The `Forward` objects of bare models in a model."""
    found = (vars(module).get("forward") for module in model.modules())
    return [forward for forward in found if isinstance(forward, Forward) and forward.is_bare]


def has_forward(model: nn.Module) -> bool:
    """Whether `put_in_place` was called for a model."""
    return isinstance(vars(model).get("forward"), Forward)


def put_in_place(model: Any, forward: Forward) -> None:
    """Replaces the `forward` of a model."""
    if forward.is_bare and model.config.model_type == "mpnet":
        from hf_bert_impl.encoders import mpnet

        mpnet.exchange(model)
    vars(model)["forward"] = forward
    vars(model)[_REPLICATE] = partial(_replicate, model)


def check_forwards(model: nn.Module) -> None:
    """Raises InputError if code around a model's `Forward` would be left by `remove`."""
    for path, module in model.named_modules():
        forward = vars(module).get("forward")
        if _REPLICATE in vars(module) and not isinstance(
            getattr(forward, "__func__", forward), Forward
        ):
            raise InputError(
                f"{path or 'The model'} has a wrapped forward. Unwrap it before restore, e.g. with "
                "accelerator.unwrap_model(model, keep_fp32_wrapper=False)."
            )


def remove(model: nn.Module) -> None:
    """Undoes `put_in_place` for a model and the bare one in it."""
    for module in model.modules():
        forward = vars(module).get("forward")
        forward = getattr(forward, "__func__", forward)
        if isinstance(forward, Forward):
            del module.forward, vars(module)[_REPLICATE]
            forward.inside.unwrap()
            if forward.is_bare and forward.bare.config.model_type == "mpnet":
                from hf_bert_impl.encoders import mpnet

                mpnet.exchange_back(forward.bare)


def _replicate(model: Any) -> Any:
    """Makes a replica for `nn.DataParallel`, which computes with stock's `forward`.

    A replica has its own parameters, and `Forward` would use the original model's.
    """
    replica = getattr(type(model), _REPLICATE)(model)
    del replica.forward
    return replica
