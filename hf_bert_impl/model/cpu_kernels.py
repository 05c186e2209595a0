"""Products of a linear layer by oneDNN, with the weight in the layout of its kernels, and bias,
activation and residual fused into them.

torch stores a linear weight row by row; oneDNN's kernels read it in blocks, and reorder it at every
call. Here that is done once, by the operators that torch's own compiler uses for frozen models
(`torch.ops.mkldnn._linear_pointwise` for floats, `torch.ops.onednn.qlinear_pointwise` for int8).

Notation: T computed tokens (see `padding.py`), N outputs of a linear layer.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN


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
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
}
#: Tokens that the blocked layout is chosen for; it serves any number.
TYPICAL_TOKENS = 512


class PackedLinear(Protocol):
    """A linear layer whose weight has been reordered."""

    def __call__(
        self, states: Tensor, residual: Tensor | None = None, activation: Fused = NOT_FUSED
    ) -> Tensor:
        """(T, in) to activation(states · Wᵀ + b) + residual, (T, N)."""


class FloatLinear:
    """W and b in float32, bfloat16 or float16."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_TOKENS)
        self.bias = bias

    def __call__(
        self, states: Tensor, residual: Tensor | None = None, activation: Fused = NOT_FUSED
    ) -> Tensor:
        """See `PackedLinear`."""
        if residual is not None:
            return torch.ops.mkldnn._linear_pointwise.binary(
                states, residual, self.weight, self.bias, "add"
            )
        return torch.ops.mkldnn._linear_pointwise(
            states, self.weight, self.bias, activation.name, [], activation.algorithm
        )


class Int8Linear:
    """W in int8, a scale an output channel; activations quantised as they come, a scale a token.

    Both symmetric: q = round(x · 127 / max|x|). Activations are stored shifted by 128, because the
    CPU's dot product takes unsigned by signed. Sums are exact in int32; bias, activation and
    residual are added in float32.
    """

    ZERO_POINT = 128

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        weight = weight.float()
        self.scale = weight.abs().amax(dim=1).clamp(min=1e-12) / 127  # (N,)
        self.weight = _pack_int8((weight / self.scale[:, None]).round().to(torch.int8))
        self.zero_points = torch.zeros(weight.shape[0], dtype=torch.int32, device="cpu")
        self.bias = bias.float()

    def __call__(
        self, states: Tensor, residual: Tensor | None = None, activation: Fused = NOT_FUSED
    ) -> Tensor:
        """See `PackedLinear`."""
        # Not `vector_norm(inf)`, which is twenty times slower on the CPU.
        scale = states.abs().amax(dim=-1, keepdim=True).clamp_(min=1e-12).div_(127)  # (T, 1)
        quantised = (states / scale).round_().add_(self.ZERO_POINT).to(torch.uint8)
        # (T, N), to be scaled by token
        product = _multiply_int8(quantised, self.weight, self.scale, self.zero_points)
        # In place: a new block of this size costs more to get from the system than to fill.
        output = torch.addcmul(self.bias, product, scale, out=product)
        output = _activate(output, activation)
        return output if residual is None else output.add_(residual)


def _pack_int8(weight: Tensor) -> Tensor:
    """(N, in) int8 in the layout of the kernel."""
    return torch.ops.onednn.qlinear_prepack(weight, [TYPICAL_TOKENS, weight.shape[1]])


def _multiply_int8(states: Tensor, weight: Tensor, scale: Tensor, zero_points: Tensor) -> Tensor:
    """(T, in) uint8, shifted by 128, times a packed weight and its scale (N,): (T, N) float32."""
    zero_point = Int8Linear.ZERO_POINT
    return torch.ops.onednn.qlinear_pointwise(
        *(states, 1.0, zero_point, weight, scale, zero_points),
        *(None, 1.0, 0, torch.float32, "none", [], ""),
    )


@cache
def int8_is_exact() -> bool:
    """Whether the CPU has the kernel, and its sums are those of the quantised numbers.

    Without VNNI instructions oneDNN adds two products in 16 bits, where they saturate. So it is
    tried, on the largest numbers that there can be.
    """
    weight = torch.full((32, 96), 127, dtype=torch.int8, device="cpu")
    weight[1::2] = -127
    states = torch.full((5, 96), 255, dtype=torch.uint8, device="cpu")
    states[3:] = 1  # -127
    ones = torch.ones(32, dtype=torch.float32, device="cpu")
    zeros = torch.zeros(32, dtype=torch.int32, device="cpu")
    try:
        found = _multiply_int8(states, _pack_int8(weight), ones, zeros)
    except (RuntimeError, AttributeError, NotImplementedError):  # differs between releases of torch
        return False
    expected = (states.float() - Int8Linear.ZERO_POINT) @ weight.float().T
    return torch.equal(found, expected)


def fused(activation: Any) -> Fused:
    """What the product computes of this activation; `NOT_FUSED` where it has to be called."""
    act = getattr(activation, "act", nn.functional.gelu)
    if getattr(act, "func", act) is not nn.functional.gelu:  # another function inside of a GELU
        return NOT_FUSED
    return FUSED_ACTIVATIONS.get(type(activation), NOT_FUSED)


def _activate(states: Tensor, activation: Fused) -> Tensor:
    """The activation, in place."""
    if activation.name == "gelu":
        return torch.ops.aten.gelu_(states, approximate=activation.algorithm)
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "none": lambda states: states,
        "relu": torch.relu_,
        "tanh": torch.tanh_,
        "swish": torch.ops.aten.silu_,
    }
    return functions[activation.name](states)


def why_no_kernels(dtype: torch.dtype) -> str | None:
    """Why oneDNN multiplies no numbers of this type here, or None if it does."""
    if not torch.backends.mkldnn.is_available() or not hasattr(
        torch.ops.mkldnn, "_linear_pointwise"
    ):
        return "this torch comes without oneDNN"
    supported = {
        torch.float32: True,
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported(),
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported(),
        torch.int8: dtype == torch.int8 and int8_is_exact(),
    }
    if supported.get(dtype, False):
        return None
    exact = "exact " * (dtype == torch.int8)
    return f"this CPU has no {exact}kernels for {str(dtype).removeprefix('torch.')}"
