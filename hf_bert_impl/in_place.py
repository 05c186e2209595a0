"""A BERT object of transformers becomes one of this package, and back: the same object and weights.

Both have the same tree of modules. So every module that is BERT's own gets this package's class and
attributes, while what it holds (children, parameters, hooks, mode) stays. Whoever has the model or
a part of it, an optimizer or an adapter for example, need not be told.
"""

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
#: Where the stock classes are. They are told by name, so that nothing of it is imported.
STOCK_HOME = "transformers.models.bert.modeling_bert"
#: What a module holds, which stays.
_HELD = frozenset(vars(nn.Module())) | {"gradient_checkpointing", "_gradient_checkpointing_func"}
#: What a model was given from outside.
_GIVEN = frozenset({"name_or_path", "generation_config"})
#: What saving writes into a configuration.
_SAVING = frozenset({"dtype", "architectures", "transformers_version"})
#: The attribute of a module with its `_Before`, and that of a model with its weights' `_Weights`.
_BEFORE, _WEIGHTS = "_before_optimize", "_weights_before_optimize"


@dataclass
class _Before:
    """A module as it was."""

    kind: type[nn.Module]
    attributes: dict[str, Any]
    #: Of the attributes it has since.
    names: frozenset[str]
    #: Of a whole model: what its new configuration says.
    settings: dict[str, Any] | None = None


@dataclass
class _Weights:
    """A model before it was prepared."""

    #: Each parameter that was converted, and the memory that it had. Names may change: PEFT's do.
    tensors: list[tuple[nn.Parameter, Tensor]]
    training: bool
    dtype: torch.dtype
    #: Handles of those that give results in this dtype.
    hooks: list[Any] = field(default_factory=list)


def is_stock(module: nn.Module) -> bool:
    """Whether it is a part of transformers' BERT."""
    return type(module).__module__ == STOCK_HOME


def is_bert(module: nn.Module) -> bool:
    """Whether it is a whole BERT, with a head or without, of transformers or of this package."""
    if isinstance(module, BertPreTrainedModel):
        return True
    kind = getattr(modeling_bert, type(module).__name__, None)
    return is_stock(module) and isinstance(kind, type) and issubclass(kind, BertPreTrainedModel)


def convert(model: Any, pairs: Pairs) -> None:
    """Makes a stock BERT one of this package.

    Args:
        model: A model for which `is_bert` is true; one of this package stays as it is.
        pairs: What `check` gave for it.
    """
    if not pairs:
        return
    for part, stock in pairs:
        if is_stock(stock):
            _swap(stock, part)
    vars(model)[_BEFORE].settings = model.config.to_dict()


def check(model: Any) -> Pairs:
    """Finds out whether `convert` can take a model, and changes nothing.

    Returns:
        Each module of an empty model of this package, and the one of `model` at its place; nothing
        for a model of this package.

    Raises:
        InputError: It has modules or code of its own that would be lost.
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
    """Undoes `convert` and `prepare`; what was learned since stays."""
    adapter.drop(model)
    kept = vars(model).pop(_WEIGHTS, None)
    if kept is not None:
        _give_back_weights(model, kept)
        if kept.training:
            model.train()
    adapter.remove(model)
    before = vars(model).get(_BEFORE)
    if before is None:
        return
    config = model.config
    for part in list(model.modules()):
        _swap_back(part)
    for name, value in config.to_dict().items():  # what was set in the meantime, a label for one
        if name not in _SAVING and value != before.settings.get(name, value):
            setattr(model.config, name, value)


def prepare(model: Any, dtype: str | torch.dtype | None, callers: Iterable[nn.Module] = ()) -> None:
    """Prepares a BERT of this package, or a model of a family, so that `revert` can undo it.

    Its results keep the dtype that they had, which modules behind it may rely on. In train mode it
    has the weights of that dtype again, and it is saved with them.

    Args:
        model: The model.
        dtype: As in `prepare_for_inference`.
        callers: Modules that call its `forward` past hooks: their results keep their dtype too.
    """
    kept = vars(model).setdefault(_WEIGHTS, _Weights([], model.training, model.dtype))
    _give_back_weights(model, kept)
    kept.tensors = [(parameter, parameter.data) for parameter in model.parameters()]
    if isinstance(model, BertPreTrainedModel):
        model.prepare_for_inference(dtype)
    else:
        adapter.prepare(model, dtype)
        vars(model)["train"] = partial(_train, model)
    kept.tensors = [pair for pair in kept.tensors if pair[0].dtype != pair[1].dtype]
    if model.dtype != kept.dtype:
        vars(model).update({name: partial(do, model) for name, do in _IN_PLACE_OF.items()})
        hook = partial(_convert_results, kept.dtype)
        kept.hooks = [part.register_forward_hook(hook) for part in (model, *callers)]


def _train(model: Any, mode: bool = True) -> Any:
    """In place of `train`: half precision is too coarse, and packed weights do not learn."""
    if mode:
        adapter.drop(model)
        _give_back_weights(model, vars(model)[_WEIGHTS])
    return type(model).train(model, mode)


def _save(model: Any, *args: Any, **kwargs: Any) -> Any:
    """In place of a converted model's `save_pretrained`: with the weights that were loaded."""
    kept = vars(model)[_WEIGHTS]
    converted = [(parameter, parameter.data) for parameter, _ in kept.tensors]
    _unconvert(kept.tensors)
    try:
        return type(model).save_pretrained(model, *args, **kwargs)
    finally:
        # The same memory: what was packed is still that of these weights.
        for parameter, data in converted:
            parameter.data = data


#: The methods that a converted model has of its own.
_IN_PLACE_OF = {"train": _train, "save_pretrained": _save}


def _convert_results(dtype: torch.dtype, module: Any, inputs: Any, results: Any) -> Any:
    """A forward hook: floating-point results in `dtype`."""
    if isinstance(results, Tensor):
        return results.to(dtype) if results.is_floating_point() else results
    convert = partial(_convert_results, dtype, module, inputs)
    if isinstance(results, MutableMapping):  # a ModelOutput or features
        for name, value in results.items():
            results[name] = convert(value)
    elif type(results) is tuple:
        return tuple(map(convert, results))
    return results


def _give_back_weights(model: Any, kept: _Weights) -> None:
    """Undoes a conversion of the dtype, and what came with it."""
    for name in _IN_PLACE_OF:
        vars(model).pop(name, None)
    while kept.hooks:
        kept.hooks.pop().remove()
    _unconvert(kept.tensors)


def _unconvert(tensors: list[tuple[nn.Parameter, Tensor]]) -> None:
    """Gives the parameters the memory that they had, or what was learned since in its dtype."""
    for parameter, before in tensors:
        current = parameter.data
        if before.dtype == current.dtype:
            continue
        is_same = current.shape == before.shape and torch.equal(
            before.to(current.device, current.dtype), current
        )
        parameter.data = (before if is_same else current).to(current.device, before.dtype)


def _empty(model: Any) -> Any:
    """A model of this package as large as a stock one, without memory."""
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
    """Raises unless `part` can take the place of `stock`."""
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
            found = tuple(stock.get_parameter(name).shape)
            if found != tuple(parameter.shape):
                raise InputError(
                    f"{path}.{name} is {found}, and the config says {tuple(parameter.shape)}. Set "
                    "the config to the model's sizes."
                )


def _names(module: nn.Module) -> list[str]:
    """Of children and own parameters, but those that are None."""
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
