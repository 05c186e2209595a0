"""Products of linear layers on the CPU, a class for each kernel of torch that computes them.

`cpu_kernels.py` says which of them is used.

Notation: T computed tokens (see `padding.py`), N outputs of a linear layer.
"""

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

#: So many rows are few: their product reads weights more than it computes.
FEW_ROWS = 64
#: The least of a signed byte. Libraries of x86 take states as unsigned bytes, shifted by it.
LEAST = -128
#: Rows that oneDNN's layout is chosen for; it serves any number.
TYPICAL_ROWS = 512

_engine_lock = threading.Lock()


class Fused(NamedTuple):
    """An activation that is computed with the product: oneDNN's name and algorithm of it."""

    name: str = "none"
    algorithm: str = ""


NOT_FUSED = Fused()
#: By the type of the module that computes it.
FUSED_ACTIVATIONS = {
    type(ACT2FN["gelu"]): Fused("gelu", "none"),
    type(ACT2FN["gelu_new"]): Fused("gelu", "tanh"),
    type(ACT2FN["gelu_pytorch_tanh"]): Fused("gelu", "tanh"),
    nn.ReLU: Fused("relu"),
    nn.Tanh: Fused("tanh"),
    nn.SiLU: Fused("swish"),
    type(ACT2FN["silu"]): Fused("swish"),
}
_IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda states: states,
    "relu": torch.relu_,
    "tanh": torch.tanh_,
    "swish": torch.ops.aten.silu_,
}


def fused(activation: Any) -> Fused:
    """What the product computes of this activation; `NOT_FUSED` where it has to be called."""
    act = getattr(activation, "act", nn.functional.gelu)
    if getattr(act, "func", act) is not nn.functional.gelu:  # another function inside of a GELU
        return NOT_FUSED
    return FUSED_ACTIVATIONS.get(type(activation), NOT_FUSED)


class Product(Protocol):
    """One linear layer, or several side by side, by one kernel."""

    def __call__(
        self, states: Tensor, residual: Tensor | None = None, activation: Fused = NOT_FUSED
    ) -> Tensor:
        """(T, in) to activation(states · Wᵀ + b) + residual, (T, N), a tensor of its own."""


class TorchProduct:
    """By torch's own kernels, on the layers' weights as they lie."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.parts = [(layer.weight, layer.bias) for layer in layers]
        self.dtype = layers[0].weight.dtype
        self.widths = [layer.out_features for layer in layers]

    def __call__(
        self, states: Tensor, residual: Tensor | None = None, activation: Fused = NOT_FUSED
    ) -> Tensor:
        """See `Product`."""
        if len(self.parts) == 1:
            output = nn.functional.linear(states, *self.parts[0])
        else:
            output = states.new_empty(len(states), sum(self.widths))
            columns = output.split(self.widths, dim=1)
            for (weight, bias), part in zip(self.parts, columns, strict=True):
                torch.addmm(bias, states, weight.t(), out=part)
        return _finish(output, residual, activation)


class OnednnProduct:
    """By oneDNN, a copy of the weights in its layout; any type of float."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        weight, self.bias = _joined(layers)
        self.dtype = weight.dtype
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_ROWS)
        # With AVX-512 its activations are as quick as ours, and save a pass over the output; with
        # less they are slower, which few rows make up for by one call less.
        self.fused_rows = torch.inf if has_avx512() else FEW_ROWS

    def __call__(
        self, states: Tensor, residual: Tensor | None = None, activation: Fused = NOT_FUSED
    ) -> Tensor:
        """See `Product`."""
        if residual is not None:
            return torch.ops.mkldnn._linear_pointwise.binary(
                states, residual, self.weight, self.bias, "add"
            )
        now, later = NOT_FUSED, activation
        if states.shape[0] <= self.fused_rows:
            now, later = activation, NOT_FUSED
        output = torch.ops.mkldnn._linear_pointwise.default(
            states, self.weight, self.bias, now.name, [], now.algorithm
        )
        return _finish(output, None, later)


class Float16Product:
    """By FBGEMM: float32 states and sums, weights rounded to float16 (half of their bytes)."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        weight, bias = _joined(layers)
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), bias.float())

    def __call__(
        self, states: Tensor, residual: Tensor | None = None, activation: Fused = NOT_FUSED
    ) -> Tensor:
        """See `Product`."""
        output = torch.ops.quantized.linear_dynamic_fp16.default(states, self.packed)
        return _finish(output, residual, activation)


class Int8Product:
    """int8 weights, a scale an output; states quantised as they come, to 8 bits a token.

    x = centre + scale · q with q in -128..127, and W = weight_scale · V with V in -limit..limit, so
    x · Wᵀ = scale · weight_scale · (q · Vᵀ) + centre · (weight_scale · ΣV). The sum q · Vᵀ is
    exact, in int32; the rest is float32.

    Args:
        layers: Side by side.
        multiply: Packs V and multiplies by it.
        limit: The largest |V|: 127, or 63 (7 bits) where larger sums would saturate.
    """

    def __init__(self, layers: Sequence[nn.Linear], multiply: "type[Int8Sums]", limit: int) -> None:
        weight, self.bias = (part.float() for part in _joined(layers))
        scale = weight.abs().amax(dim=1).clamp(min=1e-12) / limit  # (N,)
        whole = (weight / scale[:, None]).round()
        self.sums = multiply(whole.to(torch.int8), scale)
        # Of the rounded weights: their errors meet x then, and not the larger x - centre.
        self.weight_sums = scale * whole.sum(dim=1)  # (N,)

    def __call__(
        self, states: Tensor, residual: Tensor | None = None, activation: Fused = NOT_FUSED
    ) -> Tensor:
        """See `Product`."""
        # Not `aminmax`, which is ten times slower on the CPU.
        low, high = states.amin(-1, keepdim=True), states.amax(-1, keepdim=True)  # (T, 1)
        scale = (high - low).clamp_(min=1e-12).div_(255)
        centre = low.add_(scale, alpha=-LEAST)
        output = self.sums((states - centre).div_(scale))  # (T, N)
        # In place: a new block of this size costs more to get from the system than to fill.
        output = torch.addcmul(self.bias, output, scale, out=output)
        return _finish(output.addcmul_(centre, self.weight_sums), residual, activation)


class Int8Sums(Protocol):
    """scale · (round(states) · Vᵀ)."""

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        """Packs V, (N, in) int8, with `scale` (N,)."""

    def __call__(self, states: Tensor) -> Tensor:
        """(T, in) float32 between -128 and 127, which it may overwrite, to (T, N) float32."""


class OnednnSums:
    """By oneDNN."""

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        self.scale = scale
        self.weight = torch.ops.onednn.qlinear_prepack(weight, [TYPICAL_ROWS, weight.shape[1]])
        self.zero_points = torch.zeros(weight.shape[0], dtype=torch.int32, device="cpu")

    def __call__(self, states: Tensor) -> Tensor:
        """See `Int8Sums`."""
        # To signed bytes and by a bit to unsigned ones: straight to these is eight times slower.
        whole = states.round_().to(torch.int8).view(torch.uint8).bitwise_xor_(-LEAST)
        return torch.ops.onednn.qlinear_pointwise.default(
            *(whole, 1.0, -LEAST, self.weight, self.scale, self.zero_points),
            *(None, 1.0, 0, torch.float32, "none", [], ""),
        )


class FbgemmSums:
    """By FBGEMM, which rounds, multiplies and scales in one call."""

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        zero_points = torch.zeros(weight.shape[0], dtype=torch.long, device="cpu")
        # The library that packs is a setting of the process; and torch warns of tensors of this
        # kind, which its next releases may lack. oneDNN is left then.
        with _engine_lock, warnings.catch_warnings(action="ignore"):
            per_output = torch._make_per_channel_quantized_tensor(
                weight, scale.double(), zero_points, 0
            )
            before = torch.backends.quantized.engine
            torch.backends.quantized.engine = "fbgemm"
            try:
                self.packed = torch.ops.quantized.linear_prepack(per_output, None)
            finally:
                torch.backends.quantized.engine = before

    def __call__(self, states: Tensor) -> Tensor:
        """See `Int8Sums`."""
        return torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default(
            states, 1.0, -LEAST, self.packed
        )


class ProductByRows:
    """Two kernels: one for few rows, one for more."""

    def __init__(self, few: Product, many: Product, few_rows: int) -> None:
        self.few, self.many, self.few_rows = few, many, few_rows

    def __call__(
        self, states: Tensor, residual: Tensor | None = None, activation: Fused = NOT_FUSED
    ) -> Tensor:
        """See `Product`."""
        product = self.few if states.shape[0] <= self.few_rows else self.many
        return product(states, residual, activation)


def _joined(layers: Sequence[nn.Linear]) -> tuple[Tensor, Tensor]:
    """The weights (N, in) and biases (N,) of layers side by side."""
    if len(layers) == 1:
        return layers[0].weight, layers[0].bias
    return torch.cat([layer.weight for layer in layers]), torch.cat([la.bias for la in layers])


def _finish(output: Tensor, residual: Tensor | None, activation: Fused) -> Tensor:
    """Activation and residual, in place."""
    if activation.name == "gelu":
        torch.ops.aten.gelu_(output, approximate=activation.algorithm)
    else:
        _IN_PLACE[activation.name](output)
    return output if residual is None else output.add_(residual)


def has_avx512() -> bool:
    """Whether torch uses AVX-512 here."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512"
