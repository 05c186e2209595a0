"""The route of a call: packed rows, or padded as transformers computes.

Packed rows (T, D) are a form of this package alone. A hook must see what it would see in
transformers, and a module of someone else must get what it would get there. So a call is computed
padded, (B, S, D), as soon as one module in the model has a hook, or does not declare that it takes
packed rows. This is decided once per call, by `Inside.why_padded`.

A class declares it by the attribute `takes_packed`: the methods through which packed rows go. A
subclass that replaces one of them, or a patch of the class, no longer counts as declared.
"""

from collections.abc import Iterator
from itertools import chain, repeat
from operator import contains, is_, itemgetter
from typing import Any

from torch import nn
from torch.nn.modules import module as hooks_of_all

from .cpu_kernels import type_name

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
#: Where hooks come from that compute, move or gather weights, or that ask for gradients. They do
#: not depend on the shape of states.
MOVERS = (
    "torch.nn.utils.",
    "torch.distributed.fsdp.",
    "accelerate.hooks",
    "transformers.modeling_utils",
    "hf_bert_impl.in_place",
)


class Inside:
    """Knows the modules of a model, and whether someone looks at what goes through them.

    A call of a small model takes a few milliseconds, so the modules are listed once. Each call
    compares what they hold with that list, in loops of the interpreter.
    """

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.modules: list[nn.Module] = []
        self.types: list[type] = []
        self.states: list[dict[str, Any]] = []
        self.slots: list[dict[str, Any]] = []
        self.contents: list[Any] = []
        self.kinds: list[type] = []
        #: Why the modules themselves do not take packed rows, whatever their classes declare.
        self.reason: str | None = None

    def why_padded(self, root: nn.Module) -> str | None:
        """Why a call of `root` has to be computed padded; None if packed rows will do."""
        if hooks_of_all._has_any_global_hook():
            return "a hook of all modules"
        if not self._is_listed(root):
            self._list(root)
        if self.reason is not None or not all(map(takes_rows, self.kinds)):
            return self.reason or next(
                _undeclared(path, module)
                for path, module in zip(self.paths, self.modules, strict=True)
                if not takes_rows(type(module))
            )
        is_hooked = any(chain.from_iterable(map(_hooks, self.states)))
        if is_hooked or any(map(contains, self.states, repeat("forward"))):
            for path, module in zip(self.paths, self.modules, strict=True):
                reason = why_watched(module)
                if reason is not None:
                    return f"{reason} of {path or type(root).__name__}"
        return None

    def _is_listed(self, root: nn.Module) -> bool:
        contents = list(chain.from_iterable(map(dict.values, self.slots)))
        return (
            bool(self.modules)
            and self.modules[0] is root
            and len(contents) == len(self.contents)
            and all(map(is_, contents, self.contents))
            and all(map(is_, map(type, self.modules), self.types))
        )

    def _list(self, root: nn.Module) -> None:
        listed = dict(_walk(root))
        self.paths, self.modules = list(listed.values()), list(listed)
        self.types = [type(module) for module in self.modules]
        self.states = [vars(module) for module in self.modules]
        self.slots = [state["_modules"] for state in self.states if state["_modules"]]
        self.contents = list(chain.from_iterable(map(dict.values, self.slots)))
        self.kinds = list(dict.fromkeys(self.types))
        self.reason = next(
            (
                _undeclared(path, module)
                for module, path in listed.items()
                if getattr(module, "lora_variant", None)
            ),
            None,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()  # a copy or a pickle has modules of its own


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
    """What looks at the states that go through this module: a hook, or another `forward`."""
    hooks = chain.from_iterable(map(dict.values, _hooks(vars(module))))
    if hooks_of_all._has_any_global_hook() or not all(map(_moves_weights, hooks)):
        return "a hook"
    if "forward" in vars(module):
        # accelerate's wrappers. The last one converts results of a whole model.
        wrapper = vars(module).get("_hf_hook")
        if not _moves_weights(wrapper) and "_original_forward" not in vars(module):
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


def _undeclared(path: str, module: nn.Module) -> str:
    name = type_name(type(module))
    return f"{path or 'the model'}, a {name} that does not declare packed rows"


def _walk(module: nn.Module, path: str = "") -> Iterator[tuple[nn.Module, str]]:
    """The modules through which states go, with their paths."""
    yield module, path
    for name, child in module._modules.items():
        # torch's parametrizations compute weights.
        if child is not None and name != "parametrizations":
            yield from _walk(child, f"{path}.{name}".lstrip("."))
