"""Linear layers: by packed weights where they are prepared, by oneDNN where that is faster.

`linear` computes every linear layer of the model. A layer that `prepare_for_inference` packed has a
`Packed` as its attribute `packed`, outside of its parameters. Other layers of float32
are computed by oneDNN where it is faster than torch's own kernel on this CPU. The layer itself is
called if something changes, records or transforms it: an adapter, a hook, quantisation, autocast, a
compiler, a tracer, `torch.func` or a mode.

Notation: T rows, N outputs of a linear layer.
"""

import math
import platform
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from operator import attrgetter, is_, methodcaller
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as hooks_of_all
from torch.utils._device import DeviceContext
from transformers.activations import ACT2FN
from transformers.utils import logging

logger = logging.get_logger(__name__)
#: The facts of a weight by which torch shows a change.
_FACTS = (attrgetter("_version"), Tensor.data_ptr, attrgetter("dtype"), Tensor.stride)
_ITEM = methodcaller("item")
# The functions themselves: `torch.ops.aten` takes longer to call them.
_gelu_: Callable[..., Tensor] = torch._C._nn.gelu_  # type: ignore[attr-defined]
_silu_: Callable[[Tensor], Tensor] = torch._C._nn.silu_
_fill_lock = threading.Lock()
#: Up to so many rows are few: reading the weights takes longer than computing.
FEW_ROWS = 64
#: So many weights do not fit in a core's cache: oneDNN is then faster for any number of rows.
MANY_WEIGHTS = 1 << 19
#: With fewer weights, so many multiplications outweigh oneDNN's call overhead.
MANY_PRODUCTS = 1 << 21
#: oneDNN's layout is chosen for so many rows; it serves any number.
TYPICAL_ROWS = 512


class Fused(NamedTuple):
    """An activation that oneDNN computes in the same call: its name and algorithm there."""

    name: str = "none"
    algorithm: str = ""


NOT_FUSED = Fused()
EXACT_GELU = Fused("gelu", "none")
#: By the type of the module that computes it.
FUSED_ACTIVATIONS = {
    type(ACT2FN["gelu"]): EXACT_GELU,
    type(ACT2FN["gelu_new"]): Fused("gelu", "tanh"),
    type(ACT2FN["gelu_pytorch_tanh"]): Fused("gelu", "tanh"),
    nn.ReLU: Fused("relu"),
    nn.Tanh: Fused("tanh"),
    nn.SiLU: Fused("swish"),
    type(ACT2FN["silu"]): Fused("swish"),
}
#: Activations of torch that give a number the same bits at any place. The others have one way for
#: whole vectors of the CPU, and another for the numbers that are left over.
STEADY_ACTIVATIONS = (NOT_FUSED, EXACT_GELU, Fused("relu"), Fused("tanh"))
_IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda states: states,
    "relu": torch.relu_,
    "tanh": torch.tanh_,
    "swish": _silu_,
}


def fused(activation: Any) -> Fused:
    """The fused form of this activation; `NOT_FUSED` if the activation must be called."""
    found = FUSED_ACTIVATIONS.get(type(activation), NOT_FUSED)
    if found is NOT_FUSED or is_hooked(activation):
        return NOT_FUSED
    act = getattr(activation, "act", nn.functional.gelu)
    # Another function may be inside of a GELU.
    return found if getattr(act, "func", act) is nn.functional.gelu else NOT_FUSED


def linear(
    layer: nn.Module, states: Tensor, activation: Any = None, residual: Tensor | None = None
) -> Tensor:
    """activation(layer(states)) + residual, (..., in) to (..., N).

    Args:
        layer: A linear layer, or whatever is in its place.
        states: Its input.
        activation: A module or a function; None for none.
        residual: (..., N), or None.

    Raises:
        ValueError: The layer is batch-invariant, and there is no such kernel for this call.
    """
    packed = layer.__dict__.get("packed")
    if packed is not None:
        output = packed.compute((layer,), states, activation, residual)
        if output is not None:
            return output
    return _plain(layer, states, activation, residual)


def _plain(layer: nn.Module, states: Tensor, activation: Any, residual: Tensor | None) -> Tensor:
    """`linear` of a layer that is not packed."""
    if not takes_onednn(layer, states):
        output = layer(states)
    elif torch.is_grad_enabled() and (states.requires_grad or _learns(layer)):
        output = _Product.apply(states, *_parts(layer))
    elif activation is not None and fused(activation) is EXACT_GELU:
        output, activation = multiply(states, *_parts(layer), "gelu", "none"), None
    else:
        output = multiply(states, *_parts(layer))
    if activation is not None:
        output = activation(output)
    return output if residual is None else output + residual


def normalise(norm: Any, states: Tensor) -> Tensor:
    """LayerNorm of states, without the module call, whose time shows with one sentence."""
    parameters = norm._parameters
    shape, weight, bias = norm.normalized_shape, parameters["weight"], parameters["bias"]
    return torch.layer_norm(states, shape, weight, bias, norm.eps)


def _parts(layer: nn.Module) -> tuple[Any, Any]:
    """Weight and bias, or None."""
    return layer._parameters.get("weight"), layer._parameters.get("bias")


def _learns(layer: nn.Module) -> bool:
    return any(part is not None and part.requires_grad for part in _parts(layer))


# --- packed weights ----------------------------------------------------------------------------


class Product(Protocol):
    """One linear layer, or several side by side, by one kernel."""

    def __call__(
        self, states: Tensor, residual: Tensor | None = None, activation: Fused = NOT_FUSED
    ) -> Tensor:
        """(T, in) to activation(states · Wᵀ + b) + residual, (T, N), a tensor of its own."""


class FloatProduct:
    """Floats of any type, by oneDNN from weights in its layout, or by torch as they are.

    Args:
        layers: Side by side.
        most_rows: oneDNN computes up to so many rows, torch more.
        fused_rows: oneDNN computes steady activations of up to so many rows, and all others.
    """

    __slots__ = (
        *("bias", "fused_rows", "most_rows", "multiply", "multiply_and_add", "parts", "weight"),
        "widths",
    )

    def __init__(self, layers: Sequence[nn.Linear], most_rows: float, fused_rows: float) -> None:
        weight, self.bias = joined(layers)
        self.most_rows, self.fused_rows = most_rows or -1, fused_rows  # no rows are torch's too
        self.parts = (
            [(layer.weight, layer.bias) for layer in layers] if most_rows < math.inf else []
        )
        self.widths = [layer.out_features for layer in layers]
        if most_rows:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_ROWS)
        # Looked up once, without the call around it: for few rows both can be measured.
        self.multiply = torch.ops.mkldnn._linear_pointwise.default._op
        self.multiply_and_add = torch.ops.mkldnn._linear_pointwise.binary._op

    def __call__(
        self, states: Tensor, residual: Tensor | None = None, activation: Fused = NOT_FUSED
    ) -> Tensor:
        """See `Product`."""
        rows = states.shape[0]
        if rows > self.most_rows:
            return finish(self._by_torch(states), residual, activation)
        if residual is not None:
            return self.multiply_and_add(states, residual, self.weight, self.bias, "add")
        name, algorithm = activation
        if rows <= self.fused_rows or activation not in STEADY_ACTIVATIONS:
            return self.multiply(states, self.weight, self.bias, name, [], algorithm)
        output = self.multiply(states, self.weight, self.bias, "none", [], "")
        return finish(output, None, activation)

    def _by_torch(self, states: Tensor) -> Tensor:
        if len(self.parts) == 1:
            return nn.functional.linear(states, *self.parts[0])
        output = states.new_empty(len(states), sum(self.widths))
        for (weight, bias), part in zip(self.parts, output.split(self.widths, dim=1), strict=True):
            torch.addmm(bias, states, weight.t(), out=part)
        return output


class LiveProduct:
    """One layer by oneDNN on its weight as it is; if gradients are recorded, without activation."""

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer

    def __call__(
        self, states: Tensor, residual: Tensor | None = None, activation: Fused = NOT_FUSED
    ) -> Tensor:
        """See `Product`."""
        if torch.is_grad_enabled() and (states.requires_grad or _learns(self.layer)):
            output = _Product.apply(states, *_parts(self.layer))
            return output if residual is None else output + residual
        if activation in STEADY_ACTIVATIONS:
            return finish(multiply(states, *_parts(self.layer)), residual, activation)
        return multiply(states, *_parts(self.layer), *activation)


def joined(layers: Sequence[nn.Linear]) -> tuple[Tensor, Tensor]:
    """The weights (N, in) and biases (N,) of layers side by side."""
    if len(layers) == 1:
        return layers[0].weight, layers[0].bias
    return torch.cat([layer.weight for layer in layers]), torch.cat([la.bias for la in layers])


def finish(output: Tensor, residual: Tensor | None, activation: Fused) -> Tensor:
    """Activation and residual, in place."""
    if activation.name == "gelu":
        _gelu_(output, approximate=activation.algorithm)
    else:
        _IN_PLACE[activation.name](output)
    return output if residual is None else output.add_(residual)


class Guard:
    """Linear layers whose weights are packed, with the facts of these weights.

    A model has one of all its layers, so that one comparison serves a call of few tokens (see
    `QuickLayer`). Otherwise each layer compares its own weights. The comparisons are loops of the
    interpreter, because a sentence takes a few milliseconds and no cache holds hundreds of objects
    between two calls.
    """

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        #: Of the states that the encoder's packed weights take.
        self.dtype = dtype
        self.layers: list[Any] = []
        self.slots: list[dict[str, Any]] = []
        self.parameters: list[Any] = []
        self.copied: list[Tensor] = []
        #: See `BertEncoder.forward_quick`.
        self.quick: list[Any] = []
        self.modes: list[dict[str, Any]] = []
        self.listed: Any = None
        self.facts: list[list[Any]] = []

    def add(self, layers: tuple[Any, ...]) -> None:
        """Adds layers side by side as they are now."""
        self.layers += layers
        self.slots = [layer._parameters for layer in self.layers]
        self.parameters = [part for layer in self.layers for part in _parts(layer)]
        self.copied += [layer.weight for layer in layers]
        if len(layers) > 1:  # of a single layer the kernel reads the bias as it is
            self.copied += [layer.bias for layer in layers]
        # Views: they hold the memory, so that no other tensor can get it.
        self.samples = list(map(_one_number, self.copied))
        self.numbers = list(map(_ITEM, self.samples))
        # Last: other threads may ask meanwhile, and until here it does not hold.
        self.facts = [list(map(fact, self.copied)) for fact in _FACTS]

    def has_parameters(self) -> bool:
        """Whether each layer has the weight and bias that it had."""
        return sum(map(len, self.slots)) == len(self.parameters) and all(
            map(is_, chain.from_iterable(map(dict.values, self.slots)), self.parameters)
        )

    def holds(self) -> bool:
        """Whether these are still the same, with the same version, memory, dtype and one number."""
        return (
            bool(self.layers)
            and self.has_parameters()
            and [list(map(fact, self.copied)) for fact in _FACTS] == self.facts
            and list(map(_ITEM, self.samples)) == self.numbers
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.dtype,)


class Packed:
    """The weights of linear layers side by side, as a kernel reads them.

    It computes a call without gradients while each weight and bias is the same object with the same
    version, memory and dtype, and one of its numbers is the same. Otherwise the layers compute as
    usual. A copy or a pickle has no packed weights; it packs its own layers at its first call.

    Args:
        kernels: From `kernels.choose`. With None no weights are packed.
        guard: The model's.
        form: How int8 quantises the states (`int8.Form`).
    """

    __slots__ = ("dtype", "form", "guard", "kernels", "layers", "own", "product")

    def __init__(self, kernels: Any, guard: Guard, form: Any = None) -> None:
        self.kernels, self.guard, self.form = kernels, guard, form
        self.dtype: torch.dtype | None = None if kernels is None else kernels.states_dtype
        self.product: Any = None
        self.layers: tuple[Any, ...] = ()
        self.own = Guard()

    @torch.no_grad()
    def fill(self, layers: tuple[Any, ...]) -> None:
        """Packs the weights of these layers, if they can be packed; once."""
        with _fill_lock:  # threads may share a copy that is not filled yet
            if self.layers:
                return
            if self.kernels is not None and not any(map(why_not_packed, layers)):
                self.own.add(layers)
                self.guard.add(layers)
                self.product = self.kernels.pack(*layers, form=self.form)
            self.layers = layers

    def compute(
        self,
        layers: tuple[Any, ...],
        states: Tensor,
        activation: Any = None,
        residual: Tensor | None = None,
    ) -> Tensor | None:
        """activation(layer) + residual, (..., in) to (..., N); None if the layers must be called.

        Args:
            layers: The layers that it packed, as they are now.
            states: As for `linear`, and the others too.
        """
        if not self.layers:
            self.fill(layers)
        if (
            self.product is None
            or layers != self.layers
            or type(states) is not Tensor
            or states.dtype is not self.dtype
            or not self._is_current()
        ):
            return None
        function = NOT_FUSED if activation is None else fused(activation)
        if states.ndim == 2 and (activation is None or function is not NOT_FUSED):
            output: Tensor = self.product(states, residual, function)
            return output
        return _by_rows(self.product, states, activation, function, residual)

    def _is_current(self) -> bool:
        if torch.is_grad_enabled() or is_intercepted() or any(map(is_replaced, self.layers)):
            return False
        if self.own.holds():
            return True
        # Other parameters may be there for one call, as `torch.func.functional_call` has it.
        if self.own.has_parameters():
            logger.warning_once(
                "weights have changed since prepare_for_inference, so their layers compute as "
                "usual. Call it again."
            )
            self.product = None
        return False

    def __reduce__(self) -> tuple[Any, ...]:
        # Packed weights belong to these layers and this machine.
        return type(self), (self.kernels, self.guard, self.form)


class Steady(Packed):
    """The same for a batch-invariant layer: it computes every call or raises an error.

    Args:
        kernels: As in `Packed`; None if no weights are packed.
        guard: As in `Packed`.
        of_layer: Makes the kernel that reads a layer's weight as it is.
        form: As in `Packed`.
    """

    __slots__ = ("of_layer",)

    def __init__(
        self,
        kernels: Any,
        guard: Guard,
        of_layer: Callable[[nn.Linear], Product],
        form: Any = None,
    ) -> None:
        super().__init__(kernels, guard, form)
        self.of_layer = of_layer

    def compute(
        self,
        layers: tuple[Any, ...],
        states: Tensor,
        activation: Any = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """As in `Packed`.

        Raises:
            ValueError: There is no such kernel for this layer or activation.
        """
        (layer,) = layers
        if not is_plain(layer, states):
            raise ValueError(
                "batch_invariant=True needs linear layers of torch on the CPU, without hooks, "
                f"autocast or a tracer. One is a {type_name(type(layer))} of {states.dtype} on "
                f"{states.device.type}. Set batch_invariant=False."
            )
        function = fused(activation)
        has_gradient = torch.is_grad_enabled() and (states.requires_grad or _learns(layer))
        is_steady = function in STEADY_ACTIVATIONS
        if activation is not None and (function is NOT_FUSED or (has_gradient and not is_steady)):
            raise ValueError(
                "batch_invariant=True has no kernel for the activation "
                f"{type_name(type(activation))}. Set hidden_act to 'gelu' or 'relu', or "
                "batch_invariant=False."
            )
        is_int8 = self.kernels is not None and self.kernels.dtype == torch.int8
        if is_steady or not is_int8:  # after int8, torch computes the activation
            output = super().compute(layers, states, activation, residual)
            if output is not None:
                return output
        function = NOT_FUSED if has_gradient else function
        return _by_rows(self.of_layer(layer), states, activation, function, residual)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kernels, self.guard, self.of_layer, self.form)


def _by_rows(
    product: Any, states: Tensor, activation: Any, function: Fused, residual: Tensor | None
) -> Tensor:
    """Calls a kernel of rows for states of any shape. With `NOT_FUSED` the activation is called."""
    rows = states if states.ndim == 2 else states.reshape(-1, states.shape[-1])
    if residual is not None and residual.ndim != 2:
        residual = residual.reshape(len(rows), -1)
    output = product(rows, residual, function)
    if activation is not None and function is NOT_FUSED:
        output = activation(output)
    if states.ndim == 2:
        return output
    # `view` would return a tensor that autograd protects from writes.
    return torch.ops.aten._unsafe_view.default(output, (*states.shape[:-1], output.shape[-1]))


def _one_number(weight: Tensor) -> Any:
    """The bits of the number in the middle of a weight, as a NumPy view."""
    flat = weight.detach().view(-1)[weight.numel() // 2]
    return flat.view({8: torch.int64, 4: torch.int32, 2: torch.int16}[flat.itemsize]).numpy()


def why_not_packed(layer: Any) -> str | None:
    """Why a linear layer's weights cannot be packed, or None if they can."""
    if type(layer) is not nn.Linear:
        advice = "; merge_and_unload() gives a plain model" * hasattr(layer, "merge")
        return f"is a {type_name(type(layer))}, not a {type_name(nn.Linear)}{advice}"
    if is_hooked(layer):
        return "has a hook"
    weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
    if type(weight) is not nn.Parameter or type(bias) is not nn.Parameter:
        return "has no plain weight and bias"
    if not (_fits(weight, bias) and weight.is_cpu):
        return "has a weight and a bias that do not fit or are no whole blocks of the CPU's memory"
    if weight.is_inference() or bias.is_inference():
        return (
            "was made in torch.inference_mode(), where torch counts no changes of a weight; load "
            "the model outside of it"
        )
    return None


# --- layers that are not packed ----------------------------------------------------------------


def takes_onednn(layer: nn.Module, states: Tensor) -> bool:
    """Whether this call is a plain linear layer that oneDNN computes faster."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    most_rows = most_rows_by_onednn()
    if not most_rows or type(layer) is not nn.Linear or states.dtype is not torch.float32:
        return False
    weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
    if weight is None or bias is None or not states.numel():
        return False
    is_large = weight.numel() >= MANY_WEIGHTS or states.numel() * weight.shape[0] >= MANY_PRODUCTS
    rows = states.numel() // states.shape[-1]
    return is_large and rows <= most_rows and is_plain(layer, states)


def is_plain(layer: nn.Module, states: Tensor) -> bool:
    """Whether this call is a plain linear layer of tensors that oneDNN takes."""
    # The types must be exactly these: a subclass can do anything, and so can what
    # `torch.func.functional_call` puts in place of a parameter.
    if type(states) is not Tensor or not states.is_cpu or type(layer) is not nn.Linear:
        return False
    weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
    if type(weight) is not nn.Parameter or not (bias is None or type(bias) is nn.Parameter):
        return False
    return (
        _fits(weight, bias)
        and states.shape[-1] == weight.shape[1]
        and states.dtype is weight.dtype
        and weight.is_cpu
        and not is_hooked(layer)
        and not is_intercepted()
        and not torch._C._functorch.is_legacy_batchedtensor(states)
    )


def _fits(weight: Tensor, bias: Tensor | None) -> bool:
    """Whether a weight and its bias are whole blocks of memory that fit."""
    fits = weight.ndim == 2 and weight.is_contiguous()
    if fits and bias is not None:
        fits = (
            bias.shape == weight.shape[:1]
            and bias.dtype is weight.dtype
            and bias.is_cpu is weight.is_cpu
            and bias.is_contiguous()
        )
    return fits


def multiply(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    operation: str = "none",
    algorithm: str = "",
) -> Tensor:
    """(..., in), (N, in), (N,) to (..., N) by oneDNN; neither has to be contiguous."""
    compute = torch.ops.mkldnn._linear_pointwise.default
    output = compute(states, weight, bias, operation, [], algorithm)
    # For other shapes than (T, in) the operator returns a view of a temporary tensor.
    # autograd protects such a view from writes if `_Product` returned it, or if it was made
    # under `no_grad`. So it is made a tensor of its own, as in torch's `linear`.
    return (
        torch.ops.aten._unsafe_view.default(output, output.shape) if output._is_view() else output
    )


class _Product(torch.autograd.Function):
    """states · weightᵀ + bias, (..., N), whose gradients are computed by oneDNN too."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        # As torch does: save only what a gradient needs.
        of_states, of_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(states if of_weight else None, weight if of_states else None)
        return multiply(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        states, weight = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1])  # (T, N)
        # oneDNN's operators cannot be differentiated, nor compute many gradients at once.
        by_torch = (
            torch.is_grad_enabled()
            or is_intercepted()
            or torch._C._functorch.is_legacy_batchedtensor(gradient)
        )
        of_states = of_weight = of_bias = None
        if weight is not None:
            of_states = gradient @ weight if by_torch else multiply(gradient, weight.t())
        if states is not None:
            columns = states.reshape(-1, states.shape[-1]).t()  # (in, T)
            of_weight = rows.t() @ columns.t() if by_torch else multiply(rows.t(), columns)
        if ctx.needs_input_grad[2]:
            of_bias = rows.sum(0)
        return of_states, of_weight, of_bias


# --- what a call is part of ---------------------------------------------------------------------


@cache
def has_onednn() -> bool:
    """Whether torch has oneDNN, and the private names by which this file uses it."""
    functorch = getattr(torch._C, "_functorch", None)
    return (
        torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn._linear_pointwise.default, "_op")
        and hasattr(torch._C, "_len_torch_dispatch_stack")
        and hasattr(torch._C, "_len_torch_function_stack")
        and hasattr(torch.overrides, "_get_current_function_mode_stack")
        and hasattr(forward_ad, "_current_level")
        and hasattr(functorch, "peek_interpreter_stack")
        and hasattr(functorch, "is_legacy_batchedtensor")
    )


@cache
def most_rows_by_onednn() -> float:
    """Up to how many rows oneDNN is faster than torch's own float32 kernel on an unpacked weight.

    On AMD processors with AVX-512 MKL uses half of their width, so there is no limit. With AVX2
    MKL is slower for few rows only. On Intel's both are equally fast.
    """
    if not (torch.backends.mkl.is_available() and has_onednn() and _is_amd()):
        return 0
    if has_avx512():
        return math.inf
    return FEW_ROWS if torch.backends.cpu.get_cpu_capability() == "AVX2" else 0


def has_avx512() -> bool:
    """Whether torch uses AVX-512 here."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


def _is_amd() -> bool:
    with suppress(OSError), open("/proc/cpuinfo") as file:
        return "AuthenticAMD" in file.read(1000)  # of the first core
    return "AuthenticAMD" in platform.processor()  # Windows has no such file


def is_hooked(module: Any) -> bool:
    """Whether other code runs where the module is called: a hook, another `forward`."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__  # accelerate's way
        or module._compiled_call_impl is not None  # `module.compile()`
        or hooks_of_all._has_any_global_hook()
    )


def is_replaced(layer: nn.Module) -> bool:
    """Whether this is not torch's own linear layer, or has a hook."""
    return type(layer) is not nn.Linear or is_hooked(layer)


def is_intercepted() -> bool:
    """Whether something records or transforms this call (compile, autocast, torch.func)."""
    return (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch.is_autocast_enabled("cpu")
        or not torch._C._get_mkldnn_enabled()
        or (
            torch._C._len_torch_function_stack() > 0
            # `torch.set_default_device` is a mode that only names a device.
            and any(
                type(mode) is not DeviceContext
                for mode in torch.overrides._get_current_function_mode_stack()
            )
        )
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None  # `torch.func`
        or forward_ad._current_level >= 0
        or hooks_of_all._has_any_global_hook()
    )


def type_name(kind: type) -> str:
    """The full name of a type: many libraries have a `Linear`."""
    return f"{kind.__module__}.{kind.__qualname__}"
