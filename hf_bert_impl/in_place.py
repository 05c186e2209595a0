"""Converts a BERT object of transformers in place to this package's classes, and back.

Both have the same tree of modules. Every module of BERT gets this package's class and attributes;
children, parameters, hooks and mode stay. References from optimizers or adapters remain valid.
"""

import inspect
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from hf_bert_impl.errors import InputError
from hf_bert_impl.families import adapter
from hf_bert_impl.model import modeling_bert
from hf_bert_impl.model.configuration_bert import BertConfig
from hf_bert_impl.model.linear import type_name
from hf_bert_impl.model.modeling_bert import BertPreTrainedModel

Pairs: TypeAlias = list[tuple[nn.Module, nn.Module]]
#: The module of the stock classes, which are recognised by name to avoid an import.
STOCK_HOME = "transformers.models.bert.modeling_bert"
#: Attributes of a module that stay.
_HELD = frozenset(vars(nn.Module())) | {"gradient_checkpointing", "_gradient_checkpointing_func"}
#: Attributes of a model that callers set.
_GIVEN = frozenset({"name_or_path", "generation_config"})
#: Fields of a configuration that saving writes.
_SAVING = frozenset({"dtype", "architectures", "transformers_version"})
#: The attributes for a module's `_Before` and a model's `_Weights`.
_BEFORE, _WEIGHTS = "_before_optimize", "_weights_before_optimize"


@dataclass
class _Before:
    """The original state of a module."""

    kind: type[nn.Module]
    attributes: dict[str, Any]
    #: Names of its attributes since.
    names: frozenset[str]
    #: The new configuration of a whole model.
    settings: dict[str, Any] | None = None


@dataclass
class _Weights:
    """The original weights of a prepared model."""

    #: Converted parameters and their original data. Names may change, as PEFT's do.
    tensors: list[tuple[nn.Parameter, Tensor]]
    training: bool
    dtype: torch.dtype
    #: Handles of the hooks that convert results to this dtype.
    hooks: list[Any] = field(default_factory=list)


def is_stock(module: nn.Module) -> bool:
    """Whether a module is a part of transformers' BERT."""
    return type(module).__module__ == STOCK_HOME


def is_bert(module: nn.Module) -> bool:
    """Whether a module is a whole BERT, with or without head, of transformers or this package."""
    if isinstance(module, BertPreTrainedModel):
        return True
    kind = getattr(modeling_bert, type(module).__name__, None)
    return is_stock(module) and isinstance(kind, type) and issubclass(kind, BertPreTrainedModel)


def convert(model: Any, pairs: Pairs) -> None:
    """Converts a stock BERT to this package's classes.

    Args:
        model: A model for which `is_bert` is true.
        pairs: The result of `check`.
    """
    if not pairs:
        return
    for part, stock in pairs:
        if is_stock(stock):
            _swap(stock, part)
    vars(model)[_BEFORE].settings = model.config.to_dict()


def check(model: Any) -> Pairs:
    """Checks that `convert` supports a model.

    Returns:
        Pairs of a module of an empty model of this package and the module of `model` at its path;
        empty for a model of this package.

    Raises:
        InputError: Its own modules or code would be lost.
    """
    if isinstance(model, BertPreTrainedModel):
        return []
    pairs = []
    for path, part in _empty(model).named_modules():
        try:
            stock = model.get_submodule(path)
        except AttributeError:
            raise InputError(
                f"The {type_name(type(model))} has no {path}, which its config names. Load it "
                "with hf_bert_impl."
            ) from None
        _check(part, stock, path)
        pairs.append((part, stock))
    return pairs


def revert(model: Any) -> None:
    """Undoes `convert` and `prepare`; trained weights stay.

    Raises:
        InputError: A wrapper around its `forward` calls this package's code.
    """
    for path, part in model.named_modules():
        forward = vars(part).get("forward") if _BEFORE in vars(part) else None
        own = type(part).forward
        if getattr(forward, "__func__", None) in (own, inspect.unwrap(own)):
            del part.forward  # accelerate's `unwrap_model` puts it there
        elif forward is not None:
            raise InputError(
                f"{path or 'The model'} has a wrapped forward. Unwrap it before restore, e.g. with "
                "accelerator.unwrap_model(model, keep_fp32_wrapper=False)."
            )
    adapter.drop(model)
    weights = vars(model).pop(_WEIGHTS, None)
    if weights is not None:
        _restore_weights(model, weights)
        if weights.training:
            model.train()
    adapter.remove(model)
    before = vars(model).get(_BEFORE)
    if before is None:
        return
    config = model.config
    for part in list(model.modules()):
        _swap_back(part)
    for name, value in config.to_dict().items():  # settings changed in the meantime, such as labels
        if name not in _SAVING and value != before.settings.get(name, value):
            setattr(model.config, name, value)


def prepare(model: Any, dtype: str | torch.dtype | None, callers: Iterable[nn.Module] = ()) -> None:
    """Prepares a BERT of this package, or a model of a family, reversibly.

    Results keep their dtype, on which later modules may rely. Training and saving use the original
    weights.

    Args:
        model: The model.
        dtype: As in `prepare_for_inference`.
        callers: Modules that call its `forward` without hooks; their results keep their dtype too.
    """
    weights = vars(model).setdefault(_WEIGHTS, _Weights([], model.training, model.dtype))
    _restore_weights(model, weights)
    weights.tensors = [(parameter, parameter.data) for parameter in model.parameters()]
    if isinstance(model, BertPreTrainedModel):
        model.prepare_for_inference(dtype)
    else:
        adapter.prepare(model, dtype)
        vars(model)["train"] = partial(_train, model)
    weights.tensors = [pair for pair in weights.tensors if pair[0].dtype != pair[1].dtype]
    if model.dtype != weights.dtype:
        vars(model).update({name: partial(do, model) for name, do in _IN_PLACE_OF.items()})
        hook = partial(_convert_results, weights.dtype)
        weights.hooks = [part.register_forward_hook(hook) for part in (model, *callers)]


def _train(model: Any, mode: bool = True) -> Any:
    """Replaces `train`, as packed weights or half precision cannot be trained."""
    if mode:
        adapter.drop(model)
        _restore_weights(model, vars(model)[_WEIGHTS])
    return type(model).train(model, mode)


def _save(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Replaces a converted model's `save_pretrained`, to save the original weights."""
    weights = vars(model)[_WEIGHTS]
    converted = [(parameter, parameter.data) for parameter, _ in weights.tensors]
    _unconvert(weights.tensors)
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


def _restore_weights(model: Any, weights: _Weights) -> None:
    """Undoes a conversion of the dtype."""
    for name in _IN_PLACE_OF:
        vars(model).pop(name, None)
    while weights.hooks:
        weights.hooks.pop().remove()
    _unconvert(weights.tensors)


def _unconvert(tensors: list[tuple[nn.Parameter, Tensor]]) -> None:
    """Restores the data of parameters, or trained values in the original dtype."""
    for parameter, before in tensors:
        current = parameter.data
        if before.dtype == current.dtype:
            continue
        is_same = current.shape == before.shape and torch.equal(
            before.to(current.device, current.dtype), current
        )
        parameter.data = (before if is_same else current).to(current.device, before.dtype)


def _empty(model: Any) -> Any:
    """A model of this package with a stock one's sizes, on the meta device."""
    settings = model.config.to_dict()
    config = BertConfig.from_dict(settings)
    config._attn_implementation = model.config._attn_implementation
    kind = getattr(modeling_bert, type(model).__name__)
    options = {}
    if type(model).__name__ == "BertModel" and model.pooler is None:
        options["add_pooling_layer"] = False
    with torch.device("meta"):
        return kind(config, **options)


def _check(part: nn.Module, stock: nn.Module, path: str) -> None:
    """Raises InputError unless `part` can replace `stock`."""
    at = f"Module {path}" if path else "The model"
    if is_stock(stock):
        if any(vars(stock).get(name) for name in ("forward", "_compiled_call_impl")):
            raise InputError(
                f"{at} is compiled or has a replaced forward. Call optimize before that."
            )
        names = set(_names(part)) ^ set(_names(stock))
        if names:
            raise InputError(
                f"{at} differs in {', '.join(sorted(names))} from its config. Undo the change, "
                "or load the model with hf_bert_impl (relative positions need it)."
            )
    elif type(part) is nn.ModuleList and type(stock) is nn.ModuleList:
        if len(part) != len(stock):
            raise InputError(
                f"{at} has {len(stock)} parts, and the config says {len(part)}. Set the config "
                "to the model's sizes."
            )
    elif list(part.children()):
        raise InputError(
            f"{at} is a {type_name(type(stock))}, not a {STOCK_HOME}.{type(part).__name__}. "
            "Put the original back (merge_and_unload() for an adapter)."
        )
    elif type(part) is type(stock):
        for name, parameter in part.named_parameters():
            shape = tuple(stock.get_parameter(name).shape)
            if shape != tuple(parameter.shape):
                raise InputError(
                    f"{path}.{name} is {shape}, and the config says {tuple(parameter.shape)}. Set "
                    "the config to the model's sizes."
                )


def _names(module: nn.Module) -> list[str]:
    """Names of children and own parameters, except None."""
    held = (*module._modules.items(), *module._parameters.items())
    return [name for name, value in held if value is not None]


def _swap(stock: nn.Module, part: nn.Module) -> None:
    """Gives a stock module the class and the attributes of `part`."""
    attributes = vars(stock)
    before = {name: value for name, value in attributes.items() if name not in _HELD}
    new = {name: value for name, value in vars(part).items() if name not in _HELD | _GIVEN}
    attributes.update(new)
    attributes[_BEFORE] = _Before(type(stock), before, frozenset(attributes))
    stock.__class__ = type(part)


def _swap_back(part: nn.Module) -> None:
    before = vars(part).get(_BEFORE)
    if before is None:
        return
    attributes = vars(part)
    for name in (before.names | {_BEFORE}) - _HELD:
        attributes.pop(name, None)
    attributes.update(before.attributes)
    part.__class__ = before.kind
