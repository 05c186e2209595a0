"""Converts a BERT object of transformers in place to this package's classes, and back.

Both have the same tree of modules. Every module of BERT gets this package's class and attributes;
children, parameters, hooks and mode stay. References from optimizers or adapters remain valid.
"""

import inspect
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn

from hf_bert_impl.errors import InputError
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
#: The attribute for a module's `_Before`.
_BEFORE = "_before_optimize"


@dataclass
class _Before:
    """The original state of a module."""

    kind: type[nn.Module]
    attributes: dict[str, Any]
    #: Names of its attributes since.
    names: frozenset[str]
    #: The new configuration of a whole model.
    settings: dict[str, Any] | None = None


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


def check_forwards(model: Any) -> None:
    """Removes accelerate's bound methods before `revert`.

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


def revert(model: Any) -> None:
    """Undoes `convert`."""
    before = vars(model).get(_BEFORE)
    if before is None:
        return
    config = model.config
    for part in list(model.modules()):
        _swap_back(part)
    for name, value in config.to_dict().items():  # settings changed in the meantime, such as labels
        if name not in _SAVING and value != before.settings.get(name, value):
            setattr(model.config, name, value)


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
