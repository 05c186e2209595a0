"""Packed linear layers of stock models, and their original weights."""

from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import logging

from hf_bert_impl.encoders.forward import forwards
from hf_bert_impl.encoders.inside import PackedLinear
from hf_bert_impl.encoders.probe import batch_of, probe
from hf_bert_impl.errors import InputError
from hf_bert_impl.model.int8 import Form, try_forms
from hf_bert_impl.model.kernels import choose
from hf_bert_impl.model.linear import (
    Packed,
    set_packed,
    type_name,
    why_not_packed,
)
from hf_bert_impl.model.modeling_bert import BertPreTrainedModel
from hf_bert_impl.model.preparing import drop_prepared, precision_of, prepared_kernels

logger = logging.get_logger(__name__)
#: The attribute of a model for its `Originals`.
_ORIGINALS = "_weights_before_optimize"


@dataclass
class Originals:
    """The original weights of a prepared model."""

    training: bool
    dtype: torch.dtype
    #: The last argument of `prepare`.
    requested: str | torch.dtype | None = None
    #: Converted parameters, their original data, and the dtype that they got. Names may change, as
    #: PEFT's do.
    tensors: list[tuple[nn.Parameter, Tensor, torch.dtype]] = field(default_factory=list)
    #: Handles of the hooks that convert results to this dtype.
    hooks: list[Any] = field(default_factory=list)


def prepare(model: Any, dtype: str | torch.dtype | None, callers: Iterable[nn.Module] = ()) -> None:
    """Prepares a BERT of this package, or a stock model, reversibly.

    Results keep their dtype, on which later modules may rely. Training and saving use the original
    weights.

    Args:
        model: The model.
        dtype: As in `prepare_for_inference`.
        callers: Modules that call its `forward` without hooks; their results keep their dtype too.
    """
    originals = vars(model).setdefault(_ORIGINALS, Originals(model.training, model.dtype))
    _give_back(model, originals)
    originals.requested = dtype
    before = [(parameter, parameter.data) for parameter in model.parameters()]
    if isinstance(model, BertPreTrainedModel):
        model.prepare_for_inference(dtype)
    else:
        _prepare_stock(model, dtype)
        vars(model)["train"] = partial(_train, model)
    originals.tensors = [
        (parameter, data, parameter.dtype)
        for parameter, data in before
        if parameter.dtype != data.dtype
    ]
    if model.dtype != originals.dtype:
        vars(model).update({name: partial(do, model) for name, do in _IN_PLACE_OF.items()})
        hook = partial(_convert_results, originals.dtype)
        originals.hooks = [part.register_forward_hook(hook) for part in (model, *callers)]


@torch.no_grad()
def _prepare_stock(model: Any, dtype: str | torch.dtype | None) -> None:
    """Packs the linear layers of a stock model."""
    model.eval()
    drop_prepared(model)
    precision = precision_of(model, dtype)
    if precision is not None:
        # Buffers stay: rotary frequencies need all their bits.
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(
                    precision if precision.is_floating_point else torch.float32
                )
    bare = model.base_model
    for forward in (vars(part)["forward"] for part in (bare, model)):
        forward.inside.wrap()
    if model.device.type != "cpu":
        return
    kernels, of_head = choose(precision or model.dtype), choose(model.dtype)
    if dtype == "auto":
        logger.warning(f"dtype='auto' is {kernels} here")
    pooler = getattr(bare, "pooler", None)
    inside = {*bare.modules()} - {*(() if pooler is None else pooler.modules())}
    layers = [part for part in model.modules() if type(part) is PackedLinear]
    plain = {layer: None for layer in layers if why_not_packed(layer) is None}
    #: The layers side by side, with their holder and their names in it.
    places: dict[tuple[Any, ...], tuple[Any, tuple[str, ...]]] = {}
    for holder, names in forwards(bare)[0].together:
        together = tuple(map(holder._modules.get, names))
        if holder in inside and all(layer in plain for layer in together):
            places[together] = holder, names
    joined = {layer for layers in places for layer in layers}
    places |= {(layer,): (layer, ()) for layer in plain if layer not in joined}
    forms: dict[Any, Form] = {}
    if kernels.dtype == torch.int8:
        batch: Any = batch_of(bare)
        call: Any = partial(_stock, bare)
        quantised = [layers for layers in places if inside.issuperset(layers)]
        forms = try_forms(call, batch, quantised, kernels.limit)
    for place, (holder, names) in places.items():
        chosen = kernels if inside.issuperset(place) else of_head
        set_packed(holder, Packed(chosen, names, forms.get(place)))


def _stock(bare: Any, batch: dict[str, Tensor]) -> Any:
    return forwards(bare)[0].stock(**batch)


def adapt(model: Any, dtype: torch.dtype | str | None) -> Any:
    """Makes a stock encoder fast for inference, and returns it.

    `optimize` also supports training and saving.

    Raises:
        InputError: Packed rows do not compute what the model computes.
    """
    reason = probe(model)
    if reason is not None:
        raise InputError(f"The {type_name(type(model))} {reason}.")
    _prepare_stock(model, dtype)
    return model


def prepared_for(model: nn.Module) -> Any:
    """The dtype that `prepare` was called with, in a tuple; None without a call."""
    originals = vars(model).get(_ORIGINALS)
    return None if originals is None else (originals.requested,)


def computed_in(model: Any) -> str:
    """The dtype that a model computes in, with the kernels if it is prepared."""
    kernels = prepared_kernels(model)
    return str(model.dtype).removeprefix("torch.") if kernels is None else str(kernels)


def precision_in(model: Any) -> str:
    """The dtype that a model computes in. Kernels are left out: each process measures them anew."""
    kernels = prepared_kernels(model)
    return computed_in(model) if kernels is None else kernels.precision


def restore_weights(model: Any) -> None:
    """Undoes `prepare`: drops packed weights and gives the original weights back."""
    drop_prepared(model)
    originals = vars(model).pop(_ORIGINALS, None)
    if not isinstance(model, BertPreTrainedModel):
        for part in model.modules():
            vars(part).pop("packed", None)
    if originals is not None:
        _give_back(model, originals)
        if originals.training:
            model.train()


def _train(model: Any, mode: bool = True) -> Any:
    """Replaces `train`, as packed weights or half precision cannot be trained."""
    if mode:
        drop_prepared(model)
        _give_back(model, vars(model)[_ORIGINALS])
    return type(model).train(model, mode)


def _save(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Replaces a converted model's `save_pretrained`, to save the original weights."""
    tensors = vars(model)[_ORIGINALS].tensors
    converted = [(parameter, parameter.data) for parameter, _, _ in tensors]
    _unconvert(tensors)
    try:
        return type(model).save_pretrained(model, *args, **kwargs)
    finally:
        # The same memory, so that packed weights stay valid.
        for parameter, data in converted:
            parameter.data = data


#: Replaced methods of a converted model.
_IN_PLACE_OF = {"train": _train, "save_pretrained": _save}


def _convert_results(dtype: torch.dtype, module: Any, inputs: Any, results: Any) -> Any:
    """A forward hook that converts floating-point results to `dtype`."""
    if isinstance(results, Tensor):
        return results.to(dtype) if results.is_floating_point() else results
    convert = partial(_convert_results, dtype, module, inputs)
    if isinstance(results, MutableMapping):  # a ModelOutput or features
        for name, value in results.items():
            results[name] = convert(value)
    elif type(results) is tuple:
        return tuple(map(convert, results))
    return results


def _give_back(model: Any, originals: Originals) -> None:
    """Undoes a conversion of the dtype."""
    for name in _IN_PLACE_OF:
        vars(model).pop(name, None)
    while originals.hooks:
        originals.hooks.pop().remove()
    _unconvert(originals.tensors)
    originals.tensors = []


def _unconvert(tensors: list[tuple[nn.Parameter, Tensor, torch.dtype]]) -> None:
    """Restores the data of parameters, or values that were changed since in the original dtype."""
    for parameter, before, dtype in tensors:
        current = parameter.data
        same = _is_rounded(current, before.to(current.device), dtype)
        parameter.data = (before if same else current).to(current.device, before.dtype)


def _is_rounded(current: Tensor, before: Tensor, dtype: torch.dtype) -> bool:
    """Whether a weight is the original one, converted to `dtype` and perhaps to others since."""
    if current.shape != before.shape:
        return False
    rounded = before.to(dtype)
    chains = (rounded, rounded.half(), rounded.bfloat16(), rounded.half().bfloat16())
    return any(torch.equal(each.to(current.dtype), current) for each in chains)
