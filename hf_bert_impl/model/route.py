"""How a call is computed: the `Route`, and the modules that prevent packed rows.

Packed rows (T, D) exist only in this package. A hook must get the tensors that it gets in
transformers, and so must a module of another library. So a call is computed padded, (B, S, D), if a
module has a hook or does not declare that it takes packed rows. Classes declare it by the attribute
`takes_packed`: the methods that packed rows go through. A subclass that replaces one of them, or a
patch of the class, does not count as declared.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks_of_all
from torch.utils.hooks import RemovableHandle
from transformers.modeling_layers import GradientCheckpointingLayer

from .linear import (
    MANY_PRODUCTS,
    LiveProduct,
    Product,
    Source,
    Weights,
    changes,
    is_hooked,
    is_intercepted,
    is_live,
    most_rows_by_onednn,
    type_name,
)
from .steady import not_steady, steady_layers

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
_call_of = attrgetter("__call__")
#: As torch and transformers call a module; a subclass or a patch has another way.
PLAIN_CALLS = (_call_of(nn.Module), _call_of(GradientCheckpointingLayer))
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
    "hf_bert_impl.encoders",
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
        #: Whether attention is by sequences of one length, without a mask.
        self.is_rows = name in ("rows", "single")


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
        #: The number of the last change of packed weights.
        self.change = -1
        #: Whether nothing is around any module, so that `forward` may be called in its place.
        self.is_bare = False
        self.packed = self.live = Weights(())
        self.steady: Weights | None = None
        #: Why packed rows will not do.
        self.reason: str | None = None
        #: The attributes of modules that attend.
        self.attention: list[dict[str, Any]] = []

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
            or list(map(len, self.states)) != self.sizes
        ):
            self._list(root)
        return self.reason

    def products(self, root: nn.Module, is_invariant: bool = False) -> Mapping[nn.Module, Product]:
        """The products that linear layers of `root` compute by in this call.

        It is asked once a call, after `why_padded`.

        Raises:
            ValueError: The call is batch-invariant, and a layer cannot be.
        """
        if is_intercepted():
            if is_invariant:
                raise not_steady("This call is part of something else")
            return {}
        is_recorded, is_prepared = torch.is_grad_enabled(), self.is_prepared(root)
        if not is_invariant:
            if is_prepared and not is_recorded:
                return self.packed.fresh()
            live = self.live.fresh()
            if len(live) < len(self.live.places):
                self.change = -1  # other parameters: next time
            return live
        if self.steady is None:
            self.steady = steady_layers(root)
        steady = self.steady.fresh()
        if len(steady) < len(self.steady.places):
            self.steady = None
            return self.products(root, is_invariant)
        if is_recorded:
            return steady
        packed = self.packed.fresh().items()
        return {**steady, **{holder: each for holder, each in packed if each.is_steady}}

    def backends(self) -> set[Any]:
        """The attention backends of the modules, which may have their own configs."""
        configs = {id(config): config for config in map(itemgetter("config"), self.attention)}
        return {config._attn_implementation for config in configs.values()}

    def is_prepared(self, root: nn.Module) -> bool:
        """Whether weights inside `root` are packed."""
        if self.change != changes[0]:
            self._collect(root)
        return bool(self.packed.places)

    def _collect(self, root: nn.Module) -> None:
        """Finds the packed weights, and the layers whose weights oneDNN takes as they are."""
        change, self.steady = changes[0], None
        quick = list(_quick(root, self.takes_rows))
        self.is_bare = (
            len(quick) == len(self.listed)
            and not any(map(itemgetter("_forward_hooks"), self.states))
            and all(_call_of(kind) in PLAIN_CALLS for kind in set(self.types))
        )
        self.packed = Weights.packed_in(quick)
        most_rows, places = most_rows_by_onednn(), []
        for layer in quick if most_rows else ():
            if is_live(layer) and layer.bias is not None and layer.weight.dtype is torch.float32:
                product = LiveProduct(layer, most_rows, math.inf, MANY_PRODUCTS)
                places.append((layer, product, Source([layer])))
        self.live = Weights(places)
        self.change = change  # last: other threads may ask meanwhile

    def _list(self, root: nn.Module) -> None:
        count = RemovableHandle.next_id  # read first: another thread may add a hook
        self.listed = dict(_walk(root))
        self.types = [type(module) for module in self.listed]
        self.states = [vars(module) for module in self.listed]
        # Another `forward` or a compiled call is an attribute more.
        self.sizes = list(map(len, self.states))
        self.attention = [state for state in self.states if {"scaling", "config"} <= state.keys()]
        self.slots = [state["_modules"] for state in self.states if state["_modules"]]
        self.contents = list(chain.from_iterable(map(dict.values, self.slots)))
        declared = [(kind, name) for kind in dict.fromkeys(self.types) for name in _names(kind)]
        self.owners, self.names = [kind for kind, _ in declared], [name for _, name in declared]
        self.methods = list(map(getattr, self.owners, self.names))
        self.reason = next(self._reasons(root), None)
        self.change, self.is_bare = -1, False
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
        return type(self), ()  # a copy or a pickle has its own modules


def _quick(module: nn.Module, takes_rows: Callable[[type], bool]) -> Iterator[Any]:
    """The modules that our code alone calls: no hook is in them, around them or on a sibling."""
    yield module
    children = [child for child in module._modules.values() if child is not None]
    if any(map(is_hooked, children)):
        return
    for child in children:
        if takes_rows(type(child)):
            yield from _quick(child, takes_rows)


def _names(kind: Any) -> Iterator[str]:
    """The methods of a class through which packed rows go."""
    yield from ("forward", "__call__")
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
    while getattr(getattr(method, "__code__", None), "co_name", "") == "forward_with_checkpointing":
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
        is_known = _moves_weights(wrapper) or _moves_weights(vars(module)["forward"])
        if not is_known and "_original_forward" not in vars(module):
            return "another forward"
    return None


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
