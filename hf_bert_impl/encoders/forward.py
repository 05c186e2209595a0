"""Replaces the `forward` of stock encoders and of their heads.

The stock model keeps its object, class, modules, parameters and heads. `Forward` computes a call by
stock's own `forward` on packed rows (`rows.py`), and gives outputs the padded form of stock. Calls
that need padded states go to stock's `forward` as they are: attention weights, hooks on inner
modules, masks of pairs, a compiler or a tracer.

Notation: B batch, S sequence, T computed tokens, N tokens of packed texts, D hidden size.
"""

import inspect
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from hf_bert_impl.encoders.inside import StockInside, is_transformed
from hf_bert_impl.encoders.rows import ROWS, Group, NotByRows, Rows
from hf_bert_impl.errors import InputError
from hf_bert_impl.model.configuration_bert import BertConfig
from hf_bert_impl.model.inputs import TOTALS, Inputs
from hf_bert_impl.model.layout import Encoded
from hf_bert_impl.model.linear import computed_by
from hf_bert_impl.model.losses import IGNORE_INDEX
from hf_bert_impl.model.route import why_watched

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
#: States that a bare model returns in place of computing them (see `MaskedLM`).
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
        with computed_by(self.inside.products(self.inside.root)):
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
        if totals is not None:
            return self._packed(given, lengths_of(totals, given), reason)
        needs_stock = reason is not None
        if self.reads == BY_ROWS and not needs_stock:
            try:
                output = self.by_rows(given, expansions)
            except NotByRows:
                output = None
            if output is not None:
                return output
        if self.is_bare:
            if getattr(self.bare.config, "batch_invariant", False):
                raise InputError(
                    f"batch_invariant=True cannot be used with {reason or 'a row without tokens'}. "
                    "Leave it out, or set batch_invariant=False."
                )
            return self.stock(**given)
        token = _reading.set(Reading(needs_stock or self.reads == BY_ALL, given.get("labels")))
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
        source: Any = given.get("inputs_embeds") if ids is None else ids
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
        reason = None
        if not self.is_bare:
            reason = why_watched(self.bare) or vars(self.bare)["forward"].inside.why_stock()
        return reason

    def _plan(
        self, given: dict[str, Any], expansions: Tensor | None
    ) -> tuple[Rows, Tensor | None] | None:
        """The rows of a padded batch, and (B, S) bool for states that are zeros, if any."""
        ids, mask = given.get("input_ids"), given.get("attention_mask")
        source = given["inputs_embeds"] if ids is None else ids
        if mask is None or bool((is_attended := mask.to(source.device) != 0).all()):
            count, length = source.shape[:2]
            return Rows((count, length), [Group(count, 0, length)]), None
        reading, labels = _reading.get(), given.get("labels")
        padding = getattr(self.bare.config, "pad_token_id", None)
        # As in our BERT, a masked token that is no pad token has stock's states.
        if ids is None or padding is None:
            required = torch.zeros_like(is_attended)
        else:
            required = ids != padding
        if reading is not None:
            labels = reading.labels
        if expansions is not None:
            required |= expansions.to(source.device) != 0
        if labels is not None and labels.shape == required.shape:
            required |= labels.to(source.device) != IGNORE_INDEX
        zeros = None
        if reading is not None or getattr(self.bare, "pooler", None) is not None:
            if reading is None and not bool(is_attended[:, 0].all()):
                zeros = ~(is_attended | required)
            required[:, 0] = True
        rows = Rows.of_mask(is_attended, required)
        return None if rows is None else (rows, zeros)

    def by_rows(self, given: dict[str, Any], expansions: Tensor | None = None) -> Any:
        """The output of a padded call by packed rows; None if a sequence has no tokens."""
        planned = self._plan(given, expansions)
        return None if planned is None else self._by_rows(*planned, given)

    def _by_rows(self, rows: Rows, zeros: Tensor | None, given: dict[str, Any]) -> Any:
        """The padded output of a call that packed rows compute.

        Args:
            rows: The rows.
            zeros: (B, S) bool, tokens that were computed to be pooled only; None if none.
            given: The arguments of stock's `forward`.
        """
        returns_dict = given.get("return_dict")
        if returns_dict is None:
            returns_dict = self.model.config.return_dict
        if not getattr(self.bare.config, "batch_invariant", False):
            output = self.run(rows, given)
        elif self.is_bare and _reading.get() is None:
            rows, output = self._run_apart(rows, given)
        else:
            raise InputError(
                "batch_invariant=True cannot be used with a head of transformers. Compute one text "
                "per call, or set batch_invariant=False."
            )
        if rows.index is not None:
            pooled = output.get("pooler_output")
            if pooled is not None:
                states = rows.pad(output.last_hidden_state)
                first = states[:, :1] if rows.firsts is None else states[0, rows.firsts][:, None]
                pooled = self.bare.pooler(first)
            for name, value in output.items():
                output[name] = _padded(rows, zeros, value)
            if pooled is not None:
                output["pooler_output"] = pooled
        return output if returns_dict else output.to_tuple()

    def _run_apart(self, rows: Rows, given: dict[str, Any]) -> tuple[Rows, Any]:
        """Computes each sequence alone, so that its bits do not depend on the batch."""
        parts = rows.apart()
        outputs = [self.run(part, given) for part in parts]
        whole = replace(rows, index=torch.cat([part.index for part in parts]))  # type: ignore[misc]
        output = outputs[0]
        for name, value in output.items():
            values = [one[name] for one in outputs]
            if isinstance(value, tuple):
                output[name] = tuple(torch.cat(layer, 1) for layer in zip(*values, strict=True))
            elif name != "pooler_output":
                output[name] = torch.cat(values, 1)
        return whole, output

    def run(self, rows: Rows, given: dict[str, Any]) -> Any:
        """Stock's output for packed rows: (1, T, …) for each token."""
        rows = replace(rows, positions=self._positions(rows, given))
        picked = {}
        for name, value in given.items():
            if isinstance(value, Tensor) and value.shape[:2] in (rows.shape, (1, rows.shape[1])):
                value = rows.pick(value.expand(*rows.shape, *value.shape[2:]))
            picked[name] = value
        token = ROWS.set(rows)
        try:
            return self._in_rows(rows, picked | {"return_dict": True})
        finally:
            ROWS.reset(token)

    def _in_rows(self, rows: Rows, given: dict[str, Any]) -> Any:
        """Stock's `forward` on packed rows, at their positions."""
        if self.is_bare:
            source = given.get("input_ids")
            source = given["inputs_embeds"] if source is None else source
            # Masks of four dimensions go to the attention function as they are. NaN shows a module
            # that reads the mask in another way.
            given["attention_mask"] = torch.full(self.mask_shape, torch.nan, device=source.device)
            if rows.positions is not None and "position_ids" in self.names:
                given["position_ids"] = rows.positions
        elif rows.positions is not None:
            given.pop("position_ids", None)
        return self.stock(**given)

    def _positions(self, rows: Rows, given: dict[str, Any]) -> Tensor | None:
        """(1, T) positions as the model counts them in the padded batch; None for its own."""
        places, ids = given.get("position_ids"), given.get("input_ids")
        if places is not None:
            return rows.pick(places.expand(rows.shape))
        if rows.index is None or rows.columns is None:
            return None
        padding = counts_from(self.bare)
        if padding is None:
            return rows.columns[None]
        if ids is None:
            return rows.columns[None] + padding + 1
        is_token = ids.ne(padding).long()
        count = is_token.cumsum(1)
        if rows.firsts is not None:
            before = (count - is_token)[0, rows.firsts]
            sizes = rows.firsts.diff(append=rows.firsts.new_tensor([rows.shape[1]]))
            count = count - before.repeat_interleave(sizes)
        return rows.pick(count * is_token + padding)

    def _packed(self, given: dict[str, Any], lengths: list[int], reason: str | None) -> Any:
        """The output of packed texts: (1, N, …) for each token, (texts, …) for others."""
        device = next(
            given[name] for name in ("input_ids", "inputs_embeds") if given.get(name) is not None
        ).device
        given.pop("attention_mask", None)
        if self.reads == BY_ROWS and reason is None:
            return self._by_rows(Rows.of_lengths(lengths, device), None, given)
        shape = (len(lengths), max(lengths))
        mask = torch.arange(shape[1], device=device) < torch.tensor(lengths, device=device)[:, None]
        index = mask.flatten().nonzero()[:, 0]
        spread = {"attention_mask": mask.long()}
        for name, value in given.items():
            if isinstance(value, Tensor) and value.shape[:2] == (1, sum(lengths)):
                fill = IGNORE_INDEX if name == "labels" else 0
                padded = value.new_full((mask.numel(), *value.shape[2:]), fill)
                value = padded.index_copy(0, index, value[0]).unflatten(0, shape)
            spread[name] = value
        output = self(**spread)
        rows = Rows(shape, [], index)

        def pick(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(pick, value))
            return (
                rows.pick(value)
                if isinstance(value, Tensor) and value.shape[:2] == shape
                else value
            )

        if isinstance(output, tuple):
            return pick(output)
        for name, value in output.items():
            output[name] = pick(value)
        return output


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
            with computed_by(forward.inside.products(forward.inside.root)):
                scores: Tensor = forward.stock(ids, return_dict=True).logits[0]
            return scores
        finally:
            _states.reset(token)


def is_masked_lm(model: nn.Module) -> bool:
    """Whether `MaskedLM` supports a model."""
    return has_forward(model) and type(model).__name__.endswith("ForMaskedLM")


def _padded(rows: Rows, zeros: Tensor | None, value: Any) -> Any:
    """An output of packed rows in the padded form, if it has a value for each token."""
    if isinstance(value, tuple):
        return tuple(_padded(rows, zeros, one) for one in value)
    if not isinstance(value, Tensor) or value.shape[:2] != (1, len(rows.index)):  # type: ignore[arg-type]
        return value
    value = rows.pad(value)
    return (
        value
        if zeros is None
        else value.masked_fill(zeros.view(*zeros.shape, *[1] * (value.ndim - 2)), 0)
    )


def counts_from(bare: Any) -> int | None:
    """The position of padding where positions count tokens, as fairseq does; None for columns."""
    for path, module in bare.named_modules():
        if path.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return module.padding_idx
    return None


def lengths_of(totals: Tensor, given: dict[str, Any]) -> list[int]:
    """The lengths of packed texts.

    Raises:
        InputError: The totals do not fit the row.
    """
    ids = given.get("input_ids")
    shape = tuple((given["inputs_embeds"] if ids is None else ids).shape[:2])
    lengths: list[int] = totals.diff().tolist()
    if shape != (1, sum(lengths)) or min(lengths, default=0) < 1:
        raise InputError(
            f"`cu_seq_lens_q` is for texts of {lengths} tokens, and the input has the shape "
            f"{shape}. Use one row with all texts, none of them empty."
        )
    return lengths


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
