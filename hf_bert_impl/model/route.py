"""How a call is computed: the `Route`, and the modules that prevent packed rows.

Packed rows (T, D) exist only in this package. A hook must get the tensors that it gets in
transformers, and so must a module of another library. So a call is computed padded, (B, S, D), if a
module has a hook or does not declare that it takes packed rows. Classes declare it by the attribute
`takes_packed`: the methods that packed rows go through. A subclass that replaces one of them, or a
patch of the class, does not count as declared.
"""

from collections.abc import Iterator
from enum import Enum
from itertools import chain, repeat
from operator import contains, itemgetter
from typing import Any

from torch import nn
from torch.nn.modules import module as hooks_of_all
from torch.utils.hooks import RemovableHandle

from .linear import type_name

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
