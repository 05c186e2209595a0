"""Linear layers on the CPU: which kernels there are, which of them computes what, and how a linear
layer is called.

torch carries three libraries of matrix products, and none is the fastest on every processor, for
every precision and for any number of rows:

- `torch`: its own `linear` (MKL), on the weight as it lies. On AMD's processors MKL keeps to AVX2,
  half the width that those with AVX-512 have.
- `onednn`: reads weights in blocks. Here they are brought into that layout once, by the operators
  that torch's compiler uses for frozen models; bias, activation and residual can be fused.
- `fbgemm`: weights in float16 or int8 that it unpacks on the way. Quick for few rows, where a
  product does little but read its weights.

`choose` says which of them compute a precision on packed weights here. It depends on what the
processor can do, and in part on a measurement of some 50 ms, once a process. The environment
variable `HF_BERT_KERNELS` names one of the three instead, for all rows. `Product` has a class for
each kernel.

`linear` computes the layers of a model that is not prepared, by oneDNN where that pays. What is
computed is the same, in another order of summation. Whatever changes, records or transforms a
linear layer (an adapter, hooks, quantisation, autocast, a compiler, a tracer, `torch.func`, modes,
patches of torch) works as usual: then the layer itself is called. oneDNN computes gradients as
well; torch computes those that are differentiated again.
`torch.backends.mkldnn.flags(enabled=False)` switches oneDNN off.

Notation: T computed tokens (see `packing.py`), N outputs of a linear layer.
"""

import math
import os
import platform
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as hooks_of_all
from torch.utils._device import DeviceContext
from transformers.activations import ACT2FN

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
}
#: The environment variable that names one of `LIBRARIES`.
KERNELS_VARIABLE = "HF_BERT_KERNELS"
LIBRARIES = ("torch", "onednn", "fbgemm")
#: `FEW_ROWS` for int8 without VNNI instructions: oneDNN needs more rows there to be quicker.
FEW_ROWS_WITHOUT_VNNI = 192
#: So many weights do not fit in a core's cache: oneDNN is then quicker for any number of rows.
MANY_WEIGHTS = 1 << 19
#: With fewer weights, so many multiplications outweigh the few microseconds more that a call costs.
MANY_PRODUCTS = 1 << 21
#: A kernel must be so much quicker than oneDNN's to be chosen: measured times vary a little, and
#: the choice should be the same the next time.
MARGIN = 1.07
#: So many rows are few: their product takes longer to read the weights than to compute.
FEW_ROWS = 64
#: The lowest signed byte. Libraries for x86 take states as unsigned bytes, shifted by it.
LEAST = -128
#: `SteadyProduct` compares every other number of rows with calls of this many.
BLOCK_ROWS = 32
#: The largest number of rows in one call of `SteadyProduct`.
MOST_ROWS = 512
#: How many numbers of each row are compared at least. Rows of few outputs are compared repeatedly.
COMPARED = 16
#: torch allocates memory at multiples of this many bytes.
ALIGNMENT = 64
#: oneDNN's layout is chosen for so many rows; it serves any number.
TYPICAL_ROWS = 512
_engine_lock = threading.Lock()


class Fused(NamedTuple):
    """An activation that is computed with the product: oneDNN's name and algorithm of it."""

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
#: Activations of torch that give a number the same bits wherever it stands. The others have one
#: way for whole vectors of the CPU, and another for the numbers that are left over.
STEADY_ACTIVATIONS = (NOT_FUSED, EXACT_GELU, Fused("relu"), Fused("tanh"))
_IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda states: states,
    "relu": torch.relu_,
    "tanh": torch.tanh_,
    "swish": torch.ops.aten.silu_,
}


def _functions() -> tuple[Any, ...]:
    """What linear layers and norms run through; tools that count or record replace it."""
    linear = (nn.Module.__call__, nn.Linear.forward, nn.functional.linear)
    return *linear, nn.LayerNorm.forward, nn.functional.layer_norm


#: torch's own, as this file finds them.
_TORCH = _functions()


def fused(activation: Any) -> Fused:
    """How the product computes this activation; `NOT_FUSED` if the activation must be called."""
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
    """By oneDNN, a copy of the weights in its layout; any type of float.

    Args:
        layers: Side by side.
        batch_invariant: Whether activations are computed in one way for any number of rows.
    """

    def __init__(self, layers: Sequence[nn.Linear], batch_invariant: bool = False) -> None:
        weight, self.bias = _joined(layers)
        self.dtype = weight.dtype
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_ROWS)
        # They are looked up once: with few rows the search takes a time that can be measured.
        self.multiply = torch.ops.mkldnn._linear_pointwise.default
        self.multiply_and_add = torch.ops.mkldnn._linear_pointwise.binary
        # With AVX-512 its activations are as quick as ours, and save a pass over the output.
        # Without, they are slower; for few rows the call that they save makes up for that.
        few_rows = 0 if batch_invariant else FEW_ROWS
        self.fused_rows = torch.inf if has_avx512() else few_rows
        self.batch_invariant = batch_invariant

    def __call__(
        self, states: Tensor, residual: Tensor | None = None, activation: Fused = NOT_FUSED
    ) -> Tensor:
        """See `Product`."""
        rows = states.shape[0]
        if residual is not None:
            return self.multiply_and_add(states, residual, self.weight, self.bias, "add")
        is_unsteady = self.batch_invariant and activation not in STEADY_ACTIVATIONS
        if rows <= self.fused_rows or activation is NOT_FUSED or is_unsteady:
            name, algorithm = activation
            return self.multiply(states, self.weight, self.bias, name, [], algorithm)
        output = self.multiply(states, self.weight, self.bias, "none", [], "")
        return _finish(output, None, activation)


class Float16Product:
    """By FBGEMM: float32 states and sums, weights rounded to float16 (half of their bytes).

    Raises:
        ValueError: A weight is too large for float16; FBGEMM would make it smaller without a word.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        weight, bias = _joined(layers)
        largest, limit = float(weight.detach().abs().max()), torch.finfo(torch.float16).max
        if largest > limit:
            raise ValueError(
                f"a weight is as large as {largest:g}; expected at most {limit:g} in float16; "
                "load it in float32"
            )
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

    def __init__(
        self,
        layers: Sequence[nn.Linear],
        multiply: "type[Int8Sums]",
        limit: int,
    ) -> None:
        weight, self.bias = (part.float() for part in _joined(layers))
        scale = weight.abs().amax(dim=1).clamp(min=1e-12) / limit  # (N,)
        whole = (weight / scale[:, None]).round()
        self.sums = multiply(whole.to(torch.int8), scale)
        # Sums of the rounded weights, so that x multiplies their errors, not the larger x - centre.
        self.weight_sums = scale * whole.sum(dim=1)  # (N,)

    def __call__(
        self, states: Tensor, residual: Tensor | None = None, activation: Fused = NOT_FUSED
    ) -> Tensor:
        """See `Product`."""
        # Not `aminmax`, which is ten times slower on the CPU.
        low, high = states.amin(-1, keepdim=True), states.amax(-1, keepdim=True)  # (T, 1)
        scale = (high - low).clamp_(min=1e-12).div_(255)
        centre = low.add_(scale, alpha=-LEAST)
        quantised = (states - centre).div_(scale)
        output = self.sums(quantised)  # (T, N)
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
        whole = states.round_()
        # First to signed bytes, which one bit makes unsigned: the direct way is eight times slower.
        whole = whole.to(torch.int8).view(torch.uint8).bitwise_xor_(-LEAST)
        return torch.ops.onednn.qlinear_pointwise.default(
            *(whole, 1.0, -LEAST, self.weight, self.scale, self.zero_points),
            *(None, 1.0, 0, torch.float32, "none", [], ""),
        )


class FbgemmSums:
    """By FBGEMM, which rounds, multiplies and scales in one call."""

    def __init__(self, weight: Tensor, scale: Tensor) -> None:
        zero_points = torch.zeros(weight.shape[0], dtype=torch.long, device="cpu")
        # Which library packs is a setting of the whole process. torch warns that its next releases
        # may lack tensors of this kind: oneDNN is then used instead.
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


class PlainProduct:
    """One layer by oneDNN on its weight as it lies, with gradients where they are recorded."""

    def __init__(self, layer: nn.Linear) -> None:
        self.parameters: Any = (layer._parameters["weight"], layer._parameters["bias"])

    def __call__(
        self, states: Tensor, residual: Tensor | None = None, activation: Fused = NOT_FUSED
    ) -> Tensor:
        """See `Product`."""
        weight, bias = self.parameters
        if torch.is_grad_enabled() and (states.requires_grad or weight.requires_grad):
            return _finish(_Product.apply(states, weight, bias), residual, activation)
        if residual is None and (has_avx512() or activation not in STEADY_ACTIVATIONS):
            return _multiply(states, weight, bias, activation.name, activation.algorithm)
        return _finish(_multiply(states, weight, bias), residual, activation)


@dataclass(frozen=True)
class Probe:
    """What decides how a product is summed, besides the number of rows."""

    #: None for `PlainProduct`.
    kernels: "Kernels | None"
    #: The classes and functions that compute. What was found of them is not said of others.
    code: tuple[Any, ...]
    inputs: int
    outputs: int
    #: Of the states.
    dtype: torch.dtype
    has_bias: bool
    activation: Fused
    has_residual: bool
    threads: int


class SteadyProduct:
    """Gives a row the same bits in any number of rows, at any place among them.

    A kernel may choose another order of summation for another number of rows. So rows are cut and
    filled up to one of a few numbers, see `rounded_up`. Before the first call with such a number,
    a probe compares it with calls of `BLOCK_ROWS`, at every place. If any bit differs, its rows
    are computed `BLOCK_ROWS` at a time. Neither the name of the kernel nor the CPU decides.

    Args:
        product: Computes.
        probe: Its kind. The activation, the residual and the threads are those of the call.
    """

    def __init__(self, product: Product, probe: Probe) -> None:
        self.product, self.probe = product, probe
        # By call: hashing a probe takes a time that can be measured.
        self.sizes: dict[tuple[int, Fused, bool, int], int] = {}

    def __call__(
        self, states: Tensor, residual: Tensor | None = None, activation: Fused = NOT_FUSED
    ) -> Tensor:
        """See `Product`.

        Raises:
            ValueError: A row has other bits at another place among `BLOCK_ROWS`.
        """
        if states.data_ptr() % ALIGNMENT:
            states = states.clone()
        parts = states.split(MOST_ROWS)
        added = [None] * len(parts) if residual is None else residual.split(MOST_ROWS)
        outputs: list[Tensor] = []
        for part, addend in zip(parts, added, strict=True):
            size = self._size(len(part), activation, residual is not None)
            blocks = part.split(size)
            addends = [None] * len(blocks) if addend is None else addend.split(size)
            for block, more in zip(blocks, addends, strict=True):
                outputs.append(_call_with(self.product, size, block, more, activation))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _size(self, rows: int, activation: Fused, has_residual: bool) -> int:
        """How many rows a call has, for so many."""
        key = (rows, activation, has_residual, torch.get_num_threads())
        size = self.sizes.get(key)
        if size is None:
            probe = replace(
                self.probe, activation=activation, has_residual=has_residual, threads=key[-1]
            )
            if not _is_steady(probe):
                kind = str(self.probe.kernels or self.probe.dtype).removeprefix("torch.")
                raise ValueError(
                    "batch_invariant=True cannot be kept on this CPU: a product of "
                    f"{probe.outputs} outputs from {probe.inputs} inputs in {kind}, with "
                    f"{probe.threads} threads, gives a row other bits at another place of the "
                    "batch; use another dtype, call torch.set_num_threads(1), or set "
                    "batch_invariant=False"
                )
            size = rounded_up(rows)
            size = self.sizes[key] = size if _agrees(probe, size) else BLOCK_ROWS
        return size


def rounded_up(rows: int) -> int:
    """The number of rows of a call for so many rows, at most `MOST_ROWS`."""
    step = 4 if rows <= 64 else 16
    return max(step, -(-rows // step) * step)


def _call_with(
    product: Product, rows: int, states: Tensor, residual: Tensor | None, activation: Fused
) -> Tensor:
    """The product, computed with so many rows. Those that are missing are zeros."""
    count = len(states)
    if count == rows:
        return product(states, residual, activation)
    missing = (0, 0, 0, rows - count)
    residual = None if residual is None else nn.functional.pad(residual, missing)
    output = product(nn.functional.pad(states, missing), residual, activation)
    if output.requires_grad:
        return output[:count].clone()
    return output.resize_(count, output.shape[1])  # in place: copies nothing


def _probe(
    layer: nn.Linear, outputs: int, kernels: "Kernels | None", code: tuple[Any, ...]
) -> Probe:
    """The probe of a layer's products, or of layers like it side by side."""
    dtype = layer.weight.dtype
    if kernels is not None and kernels.dtype == torch.int8:
        dtype = torch.float32
    has_bias = layer.bias is not None
    return Probe(kernels, code, layer.in_features, outputs, dtype, has_bias, NOT_FUSED, False, 1)


@cache
@torch.no_grad()
def _is_steady(probe: Probe) -> bool:
    """Whether a row has the same bits at every place of a call of `BLOCK_ROWS`."""
    rows = max(4, COMPARED // probe.outputs)
    compute = _trial(probe, rows)
    calls = (
        compute(torch.full((BLOCK_ROWS,), row, device="cpu"), BLOCK_ROWS) for row in range(rows)
    )
    return all(torch.equal(bits, bits[:1].expand_as(bits)) for bits in calls)


@cache
@torch.no_grad()
def _agrees(probe: Probe, rows: int) -> bool:
    """Whether a call of so many rows gives the bits of calls of `BLOCK_ROWS`, at every place."""
    turns = max(2, COMPARED // probe.outputs)
    places = torch.arange(rows + turns - 1, device="cpu")
    compute = _trial(probe, len(places))
    blocks = torch.cat([compute(part, BLOCK_ROWS) for part in places.split(BLOCK_ROWS)])
    return all(torch.equal(compute(part, rows), blocks[part]) for part in places.unfold(0, rows, 1))


def _trial(probe: Probe, count: int) -> Callable[[Tensor, int], Tensor]:
    """Numbers for a product of this kind, that tell one order of summation from another.

    All terms of every other row cancel, so its outputs are the rounding errors of the sums. They
    differ with the order even where ordinary outputs, rounded to half precision, seldom do. The
    factors keep errors and partial sums within float16.

    Args:
        probe: The kind.
        count: How many different rows there are.

    Returns:
        A function of the numbers of some of these rows, and of the number of rows to call with. It
        gives the bits of their outputs.
    """
    inputs, outputs, dtype = probe.inputs, probe.outputs, probe.dtype
    generator = torch.Generator("cpu").manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32)

    order = torch.randperm(inputs, generator=generator, device="cpu")
    half, odd = draw(count, inputs // 2), draw(count, inputs % 2)
    states = torch.cat((half, half, odd), dim=1)[:, order] / inputs**0.5 / 32
    states[::2] = torch.cat((half, -half, 0 * odd), dim=1)[::2, order] * 16
    half, odd = draw(min(outputs, COMPARED), inputs // 2), draw(min(outputs, COMPARED), inputs % 2)
    weight = 32 * torch.cat((half, half, odd), dim=1)[:, order]
    layer = nn.utils.skip_init(
        nn.Linear, inputs, outputs, bias=probe.has_bias, device="cpu", dtype=dtype
    )
    layer.weight.copy_(weight.repeat(-(-outputs // len(weight)), 1)[:outputs])
    if probe.has_bias:
        layer.bias.copy_(draw(outputs) / 1024)
    states, residual = states.to(dtype), (draw(count, outputs) / 1024).to(dtype)
    kernels = probe.kernels
    product = PlainProduct(layer) if kernels is None else kernels.pack_bare(layer)

    def compute(places: Tensor, rows: int) -> Tensor:
        added = residual[places] if probe.has_residual else None
        output = _call_with(product, rows, states[places], added, probe.activation)
        return output.view(torch.int16 if output.itemsize == 2 else torch.int32)

    return compute


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


@dataclass(frozen=True)
class Kernels:
    """What computes the products of one precision."""

    dtype: torch.dtype
    #: Which of `LIBRARIES` computes up to `few_rows` rows, and which more.
    few: str
    many: str
    few_rows: int = FEW_ROWS
    #: int8: the largest weight.
    limit: int = 127
    #: Whether a row must have the same bits in any number of rows.
    batch_invariant: bool = False

    def pack(self, *layers: nn.Linear) -> Product:
        """The layers, whose outputs are joined, with their weights as these kernels read them."""
        product = self.pack_bare(*layers)
        if not self.batch_invariant:
            return product
        code = (OnednnProduct, Int8Product, OnednnSums, FbgemmSums)
        outputs = sum(layer.out_features for layer in layers)
        return SteadyProduct(product, _probe(layers[0], outputs, self, code))

    def pack_bare(self, *layers: nn.Linear) -> Product:
        """The same, but for `batch_invariant`: without `SteadyProduct`."""
        few = self._product(self.few, layers)
        if self.few == self.many:
            return few
        return ProductByRows(few, self._product(self.many, layers), self.few_rows)

    def _product(self, library: str, layers: Sequence[nn.Linear]) -> Product:
        if self.dtype == torch.int8:
            sums: type[Int8Sums] = OnednnSums if library == "onednn" else FbgemmSums
            return Int8Product(layers, sums, self.limit)
        if library == "fbgemm":
            return Float16Product(layers)
        if library == "onednn":
            return OnednnProduct(layers, self.batch_invariant)
        return TorchProduct(layers)

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        if self.dtype == torch.int8 and self.limit < 127:
            kind += " (weights of 7 bits)"
        if self.dtype == torch.float16 and "fbgemm" in (self.few, self.many):
            kind = "float16 weights, float32 states"
        if self.few == self.many:
            return f"{kind} by {self.few}"
        return f"{kind} by {self.few} up to {self.few_rows} rows, beyond by {self.many}"


def choose(dtype: torch.dtype, batch_invariant: bool = False) -> Kernels:
    """What computes linear layers of this precision on this machine.

    Args:
        dtype: One of `DTYPES`. If the CPU computes no float16, that means weights of float16
            beside states of float32, by FBGEMM.
        batch_invariant: Whether a row has to have the same bits in any number of rows.

    Raises:
        ValueError: There are no such kernels here (see `why_no_kernels`), or `HF_BERT_KERNELS`
            names none of them.
    """
    reason = why_no_kernels(dtype, batch_invariant=batch_invariant)
    if reason is not None:
        raise ValueError(reason)
    available = libraries(dtype)
    forced = os.environ.get(KERNELS_VARIABLE)
    if forced:
        if forced not in available:
            kind = str(dtype).removeprefix("torch.")
            raise ValueError(
                f"{KERNELS_VARIABLE} is {forced!r}; for {kind} on this CPU it can be "
                f"{' or '.join(available)}, or unset"
            )
        if batch_invariant and forced == "torch":
            raise ValueError(
                f"{KERNELS_VARIABLE} is 'torch', whose bits depend on the number of rows; unset "
                "it, or set batch_invariant=False"
            )
        limit = _int8_limit(forced)
        return Kernels(dtype, forced, forced, limit=limit, batch_invariant=batch_invariant)
    if dtype == torch.int8:
        limit = _int8_limit(*available)
        few_rows = FEW_ROWS if limit == 127 else FEW_ROWS_WITHOUT_VNNI
        # Libraries round halves in their own ways, so only one of them is batch-invariant.
        few = available[0 if batch_invariant else -1]
        return Kernels(dtype, few, available[0], few_rows, limit, batch_invariant)
    if available == ("fbgemm", "torch"):
        return Kernels(dtype, *available)
    if dtype == torch.float32 and not batch_invariant and _torch_is_quicker():
        return Kernels(dtype, "onednn", "torch")
    return Kernels(dtype, "onednn", "onednn", batch_invariant=batch_invariant)


def fastest_dtype(device: torch.device, batch_invariant: bool = False) -> torch.dtype:
    """The quickest precision with kernels here whose error is bfloat16's or less.

    On the CPU it is bfloat16 if there are kernels, else float16 for the weights alone, else
    float32. On accelerators it is bfloat16 if they have it, else float16.
    """
    if device.type != "cpu":
        is_old = device.type != "cuda" or not torch.cuda.is_bf16_supported()
        return torch.float16 if is_old else torch.bfloat16
    for dtype in (torch.bfloat16, torch.float16):
        if why_no_kernels(dtype, batch_invariant=batch_invariant) is None:
            return dtype
    return torch.float32


def keeps_float32(dtype: torch.dtype) -> bool:
    """Whether only weights are of this precision here, and all states float32."""
    return dtype == torch.int8 or (dtype == torch.float16 and "fbgemm" in libraries(dtype))


def why_no_kernels(
    dtype: torch.dtype, of_states: bool = False, batch_invariant: bool = False
) -> str | None:
    """Why there are no kernels worth using for this precision here, or None if there are.

    Args:
        dtype: The precision.
        of_states: Whether the states are of it, too, not only weights.
        batch_invariant: Whether a row has to have the same bits in any number of rows.
    """
    if not has_onednn():
        return "this torch comes without oneDNN"
    if batch_invariant and dtype == torch.float16 and "fbgemm" in libraries(dtype):
        return "this CPU's kernels for float16 are not batch-invariant"
    if libraries(dtype) and not (of_states and keeps_float32(dtype)):
        return None
    exact = "exact " * (dtype == torch.int8)
    return f"this CPU has no {exact}kernels for {str(dtype).removeprefix('torch.')}"


@cache
def has_onednn() -> bool:
    """Whether torch has oneDNN, with the operators for weights in its layout."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@cache
def most_rows_by_onednn() -> float:
    """Up to how many rows oneDNN beats torch's own product of float32 on a weight as it lies.

    On AMD's processors with AVX-512 MKL uses half of their width, so it is any number. On those
    with AVX2 MKL is slower for few rows only. On Intel's both are as fast.
    """
    if not (torch.backends.mkl.is_available() and has_onednn() and _is_amd()):
        return 0
    if has_avx512():
        return math.inf
    return FEW_ROWS if torch.backends.cpu.get_cpu_capability() == "AVX2" else 0


def _is_amd() -> bool:
    with suppress(OSError), open("/proc/cpuinfo") as file:
        return "AuthenticAMD" in file.read(1000)  # of the first core
    return "AuthenticAMD" in platform.processor()  # Windows has no such file


def is_large(states: Tensor, weight: Tensor) -> bool:
    """Whether the product is so large that the dearer call pays."""
    weights = weight.numel()
    if weights >= MANY_WEIGHTS:
        return states.numel() > 0
    return states.numel() * weight.shape[0] >= MANY_PRODUCTS


def libraries(dtype: torch.dtype) -> tuple[str, ...]:
    """Which of `LIBRARIES` compute this precision here."""
    if dtype == torch.float32:
        return ("onednn", "torch")
    if dtype == torch.int8:
        return tuple(_int8_limits())
    supported = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    # oneDNN imitates bfloat16 on a CPU that has no more than AVX-512, and is many times slower.
    if dtype in supported and supported[dtype]() and _half_is_quick(dtype):
        return ("onednn",)
    return ("fbgemm", "torch") if dtype == torch.float16 and _has_fbgemm_float16() else ()


@cache
def _torch_is_quicker() -> bool:
    """Whether for many rows of float32 torch's own product beats oneDNN's."""
    layer = _layer(torch.float32)
    own, onednn = _seconds(TorchProduct([layer]), OnednnProduct([layer]))
    return own * MARGIN < onednn


@cache
def _half_is_quick(dtype: torch.dtype) -> bool:
    """Whether oneDNN's product of this type is no slower than that of float32."""
    half, full = _seconds(*(OnednnProduct([_layer(kind)]) for kind in (dtype, torch.float32)))
    return half <= full


def _layer(dtype: torch.dtype) -> nn.Linear:
    """A layer to try: it draws no random numbers, which would change those of the caller."""
    layer = nn.utils.skip_init(nn.Linear, 768, 768, device="cpu", dtype=dtype)
    for part in layer.parameters():
        nn.init.constant_(part, 0.01)
    return layer


@torch.no_grad()
def _seconds(*products: TorchProduct | OnednnProduct) -> list[float]:
    """The shortest of five times of each product: 512 rows, by one thread, in turns.

    A first run is not counted. The clock counts the thread's own time, because the choice must
    not depend on other work on the machine. On Windows that clock is too coarse.
    """
    clock = time.perf_counter if sys.platform == "win32" else time.thread_time
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        least = [float("inf")] * len(products)
        for repeat in range(6):
            for index, product in enumerate(products):
                states = torch.ones(512, 768, dtype=product.dtype, device="cpu")
                begin = clock()
                product(states)
                if repeat:
                    least[index] = min(least[index], clock() - begin)
        return least
    finally:
        torch.set_num_threads(threads)


@cache
def _has_fbgemm_float16() -> bool:
    """Whether FBGEMM multiplies by weights in float16 here."""
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return False
    try:
        with torch.no_grad():
            Float16Product([_layer(torch.float32)])(torch.ones(2, 768, device="cpu"))
    except (RuntimeError, AttributeError, NotImplementedError):  # differs between releases of torch
        return False
    return True


def _int8_limit(*libraries: str) -> int:
    """The largest weight for which the int8 sums of all of these are exact."""
    return min((_int8_limits().get(library, 127) for library in libraries), default=127)


@cache
def _int8_limits() -> dict[str, int]:
    """By library the largest weight for which its sums are exact, if there is one.

    Without VNNI instructions both add two products in 16 bits, where 8-bit weights saturate and
    those of 7 bits do not. So each is tried on the largest sums that there can be.
    """
    found = {}
    for library, kind in (("onednn", OnednnSums), ("fbgemm", FbgemmSums)):
        limit = next((limit for limit in (127, 63) if _is_exact(kind, limit)), None)
        if limit is not None:
            found[library] = limit
    return found


def _is_exact(kind: type[Int8Sums], limit: int) -> bool:
    """Whether the sums of the largest numbers are those of whole numbers, for few and many rows.

    States are 255 as unsigned bytes.
    """
    weight = torch.full((35, 203), limit, dtype=torch.int8, device="cpu")
    weight[1::3] = -limit
    weight[2::3, ::2] = -limit
    ones = torch.ones(len(weight), device="cpu", dtype=torch.float32)
    states = torch.full((2 * FEW_ROWS + 1, weight.shape[1]), 127.0, device="cpu")
    states[3::5] = LEAST
    states[4::5, 1::2] = 1
    expected = states @ weight.float().T  # below 2²⁴, where float32 holds all whole numbers
    try:
        with torch.no_grad():
            sums = kind(weight, ones)
            return all(
                torch.equal(sums(states[:n].clone()), expected[:n]) for n in (1, 7, len(states))
            )
    except (RuntimeError, AttributeError, NotImplementedError):  # differs between releases of torch
        return False


def linear(
    layer: nn.Module,
    states: Tensor,
    activation: Any = None,
    batch_invariant: bool = False,
) -> Tensor:
    """(..., in) to activation(layer(states)), (..., N).

    Args:
        layer: A linear layer, or whatever stands in its place.
        states: Its input.
        activation: Follows, if given. The exact GELU is then part of the product.
        batch_invariant: Whether a row has to have the same bits in any number of rows.

    Raises:
        ValueError: There is no such kernel for this layer.
    """
    if batch_invariant:
        return _batch_invariant_linear(layer, states, activation)
    if not takes_onednn(layer, states):
        output = layer(states)
        return output if activation is None else activation(output)
    parameters: Any = layer._parameters
    inputs = (states, parameters["weight"], parameters["bias"])
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        output = _Product.apply(*inputs)
    elif activation is not None and fused(activation) is EXACT_GELU and not is_hooked(activation):
        output, activation = _multiply(*inputs, "gelu", "none"), None
    else:
        output = _multiply(*inputs)
    return output if activation is None else activation(output)


def _batch_invariant_linear(layer: nn.Module, states: Tensor, activation: Any) -> Tensor:
    """`linear` by a `SteadyProduct`."""
    if not (has_onednn() and _is_plain(layer, states)):
        raise ValueError(
            "batch_invariant=True needs linear layers of torch on the CPU, without hooks, autocast "
            f"or a tracer; here one is a {type_name(type(layer))} of {states.dtype} on "
            f"{states.device.type}: undo that, or set batch_invariant=False"
        )
    plain: Any = layer
    has_gradient = torch.is_grad_enabled() and (states.requires_grad or plain.weight.requires_grad)
    function = NOT_FUSED if activation is None else fused(activation)
    if activation is not None and (
        function is NOT_FUSED or has_gradient or is_hooked(activation)
    ):  # it is called
        if function is NOT_FUSED or function not in STEADY_ACTIVATIONS:
            kind = type_name(type(activation))
            raise ValueError(
                f"batch_invariant=True has no kernel for the activation {kind}; set hidden_act to "
                "'gelu' or 'relu', or batch_invariant=False"
            )
        function = NOT_FUSED
    probe = _probe(plain, plain.out_features, None, (PlainProduct, _multiply))
    product = SteadyProduct(PlainProduct(plain), probe)
    rows = states.reshape(-1, states.shape[-1]).contiguous()  # (T, in)
    output = product(rows, activation=function)
    if activation is not None and function is NOT_FUSED:
        output = activation(output)
    if states.ndim == 2:
        return output
    return torch.ops.aten._unsafe_view.default(output, (*states.shape[:-1], output.shape[-1]))


def _multiply(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    operation: str = "none",
    algorithm: str = "",
) -> Tensor:
    """(..., in), (N, in), (N,) to (..., N); neither has to be contiguous."""
    multiply = torch.ops.mkldnn._linear_pointwise.default
    output = multiply(states, weight, bias, operation, [], algorithm)
    # For other shapes than (T, in) the operator returns a view of a tensor that nobody else holds.
    # autograd lets nobody write into such a view if `_Product` returned it, or if it was made
    # under `no_grad`. So it is made a tensor of its own, as torch's products are.
    return (
        torch.ops.aten._unsafe_view.default(output, output.shape) if output._is_view() else output
    )


class _Product(torch.autograd.Function):
    """states · weightᵀ + bias, (..., N), whose gradients are products by oneDNN too."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        # As torch does: what no gradient needs is not kept alive.
        of_states, of_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(states if of_weight else None, weight if of_states else None)
        return _multiply(states, weight, bias)

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
            of_states = gradient @ weight if by_torch else _multiply(gradient, weight.t())
        if states is not None:
            columns = states.reshape(-1, states.shape[-1]).t()  # (in, T)
            of_weight = rows.t() @ columns.t() if by_torch else _multiply(rows.t(), columns)
        if ctx.needs_input_grad[2]:
            of_bias = rows.sum(0)
        return of_states, of_weight, of_bias


def takes_onednn(layer: nn.Module, states: Tensor) -> bool:
    """Whether this call is a plain product that oneDNN computes faster."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    most_rows = most_rows_by_onednn()
    if not most_rows or type(layer) is not nn.Linear or states.dtype is not torch.float32:
        return False
    weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
    if weight is None or bias is None or not is_large(states, weight):
        return False
    rows = states.numel() // states.shape[-1]  # `is_large` leaves no empty states
    return rows <= most_rows and _is_plain(layer, states)


def _is_plain(layer: nn.Module, states: Tensor) -> bool:
    """Whether this call is a product and nothing else, of tensors that oneDNN takes."""
    # The types must be exactly these: a subclass can do anything, and so can what
    # `torch.func.functional_call` puts in place of a parameter.
    if type(states) is not Tensor or not states.is_cpu:
        return False
    if type(layer) is not nn.Linear or not can_tell() or why_not_plain(layer) is not None:
        return False
    weight: Any = layer._parameters["weight"]
    return (
        states.shape[-1] == weight.shape[1]
        and states.dtype is weight.dtype
        and weight.is_cpu
        and not is_hooked(layer)
        and not is_patched()
        and not is_intercepted()
        and not torch._C._functorch.is_legacy_batchedtensor(states)
    )


def why_not_plain(layer: nn.Module) -> str | None:
    """Why a linear layer's weight and bias are no plain tensors of memory, or None if they are."""
    weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
    if type(weight) is not nn.Parameter or not (bias is None or type(bias) is nn.Parameter):
        return "has no plain weight and bias"
    fits = weight.ndim == 2 and weight.is_contiguous()
    if fits and bias is not None:
        fits = (
            bias.shape == weight.shape[:1]
            and bias.dtype is weight.dtype
            and bias.is_cpu is weight.is_cpu
            and bias.is_contiguous()
        )
    return (
        None if fits else "has a weight and a bias that do not fit or are no whole blocks of memory"
    )


@cache
def can_tell() -> bool:
    """Whether this torch has the private names that tell what a call is part of."""
    return (
        hasattr(torch._C, "_len_torch_dispatch_stack")
        and hasattr(torch._C, "_len_torch_function_stack")
        and hasattr(torch.overrides, "_get_current_function_mode_stack")
        and hasattr(forward_ad, "_current_level")
        and hasattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack")
        and hasattr(torch._C._functorch, "is_legacy_batchedtensor")
        and hasattr(nn.Module, "_compiled_call_impl")
        and hasattr(hooks_of_all, "_has_any_global_hook")
    )


def is_hooked(module: nn.Module) -> bool:
    """Whether someone else's code runs where the module is called."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__  # accelerate's way
        or module._compiled_call_impl is not None  # `module.compile()`
        or hooks_of_all._has_any_global_hook()
    )


def type_name(kind: type) -> str:
    """The full name of a type: many libraries have a `Linear`."""
    return f"{kind.__module__}.{kind.__qualname__}"


def is_patched() -> bool:
    """Whether a tool has replaced a function that linear layers and norms run through."""
    return _functions() != _TORCH


def is_intercepted() -> bool:
    """Whether more than numbers is wanted of this call: a program, tangents, another precision."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch.is_autocast_enabled("cpu")
        or not torch.backends.mkldnn.enabled
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
    )
