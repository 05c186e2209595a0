"""Batch invariance: linear layers that give a row the same bits in any number of rows.

Notation: T rows, N outputs of a linear layer.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from .linear import (
    NOT_FUSED,
    STEADY_ACTIVATIONS,
    Fused,
    LiveProduct,
    Product,
    Source,
    Weights,
    has_avx512,
    is_live,
    is_recorded,
    no_kernel,
    parameters_of,
    rounded_up,
    type_name,
)

#: `SteadyProduct` compares every other number of rows with calls of this many.
BLOCK_ROWS = 32
#: The largest number of rows in one call of `SteadyProduct`.
MAX_ROWS = 512
#: The smallest number of rows in one: kernels of one row have sums in another order.
FEWEST_ROWS = 4
#: The minimum number of outputs that is compared. Rows of few outputs are compared repeatedly.
COMPARED = 16
#: torch allocates memory at multiples of this many bytes.
ALIGNMENT = 64


def steady_layers(root: nn.Module) -> Weights:
    """The products of the linear layers of a batch-invariant model, on their weights as they are.

    Raises:
        ValueError: A layer has no such product.
    """
    places: list[tuple[nn.Module, Product, Source]] = []
    for module in root.modules():
        if hasattr(module, "lora_A"):
            raise ValueError(
                f"batch_invariant=True cannot be used with a {type_name(type(module))}. Call "
                "merge_and_unload(), or set batch_invariant=False."
            )
        if isinstance(module, nn.Linear):
            if not is_live(module):
                raise not_steady(f"One is a {type_name(type(module))} without a plain weight")
            product = SteadyProduct(live_product(module), probe_of(module, module.out_features))
            places.append((module, product, Source([module])))
    return Weights(places)


def not_steady(reason: str) -> ValueError:
    """The error of a batch-invariant call that has other linear layers."""
    return ValueError(
        "batch_invariant=True needs linear layers of torch on the CPU, without hooks, autocast or "
        f"a tracer. {reason}. Set batch_invariant=False."
    )


def live_product(layer: nn.Linear) -> LiveProduct:
    """One layer on its weight as it is, always by oneDNN."""
    return LiveProduct(layer, math.inf, math.inf if has_avx512() else 0)


def check_gradient(states: Tensor, layer: nn.Linear, activation: Fused) -> None:
    """Raises ValueError if autograd records an activation that torch does not compute steadily."""
    if is_recorded(states, *parameters_of(layer)):
        raise no_kernel(f"{activation.name} with gradients")


@dataclass(frozen=True)
class Probe:
    """Everything that decides the order of a kernel's sums, except the number of rows."""

    #: None for `LiveProduct`.
    kernels: Any
    inputs: int
    outputs: int
    #: Of the states.
    dtype: torch.dtype
    has_bias: bool
    activation: Fused
    has_residual: bool
    threads: int


class SteadyProduct(Product):
    """Gives a row the same bits in any number of rows, at any place among them.

    A kernel may choose another order of summation for another number of rows. So rows are cut and
    filled up to one of a few numbers. Before the first call with such a number, a probe compares it
    with calls of `BLOCK_ROWS`, at every place. If any bit differs, a call of more than `BLOCK_ROWS`
    is divided into calls of that many, and a smaller one is refused. The names of kernel and CPU do
    not matter.

    Args:
        product: The kernel.
        probe: Its kind. Each call has its own activation, residual and threads.
    """

    is_steady = True

    def __init__(self, product: Product, probe: Probe) -> None:
        self.product, self.probe, self.dtype = product, probe, product.dtype
        self.copies_bias = product.copies_bias
        # Whether calls pass the probe: hashing a probe takes a time that can be measured.
        self.tried: dict[tuple[int, Fused, bool, int], bool] = {}

    def __call__(
        self, states: Tensor, residual: Tensor | None = None, activation: Fused = NOT_FUSED
    ) -> Tensor:
        """See `Product`.

        Raises:
            ValueError: A row has other bits in a call of at most `BLOCK_ROWS`, or at another place
                in it, or gradients are recorded of an activation that torch does not compute so.
        """
        if states.ndim != 2:
            return self.fitted(states, residual, activation)
        layer = getattr(self.product, "layer", None)
        if activation not in STEADY_ACTIVATIONS and layer is not None:
            check_gradient(states, layer, activation)
        if states.data_ptr() % ALIGNMENT:
            states = states.clone()
        most = self._most_rows(len(states), activation, residual is not None)
        parts = states.split(most)
        added = [None] * len(parts) if residual is None else residual.split(most)
        outputs: list[Tensor] = []
        for part, addend in zip(parts, added, strict=True):
            size = _filled_up(len(part))
            if not self._keeps_bits(size, activation, residual is not None):
                raise self._refusal(size, activation, residual is not None)
            outputs.append(_call_with(self.product, size, part, addend, activation))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _most_rows(self, count: int, activation: Fused, has_residual: bool) -> int:
        """The maximum number of rows in a call, such that the calls for `count` rows pass."""
        sizes = (_filled_up(min(count, MAX_ROWS)), _filled_up(count % MAX_ROWS))
        larger = (size for size in sizes if size > BLOCK_ROWS)
        is_steady = all(self._keeps_bits(size, activation, has_residual) for size in larger)
        return MAX_ROWS if is_steady else BLOCK_ROWS

    def _keeps_bits(self, rows: int, activation: Fused, has_residual: bool) -> bool:
        """Whether a call of so many rows gives each row the bits of calls of `BLOCK_ROWS`."""
        call = (rows, activation, has_residual, torch.get_num_threads())
        if call not in self.tried:
            self.tried[call] = _passes(self._probe(activation, has_residual), rows)
        return self.tried[call]

    def _probe(self, activation: Fused, has_residual: bool) -> Probe:
        """The probe of a call."""
        threads = torch.get_num_threads()
        return replace(
            self.probe, activation=activation, has_residual=has_residual, threads=threads
        )

    def _refusal(self, rows: int, activation: Fused, has_residual: bool) -> ValueError:
        """The error of a call of so many rows that does not pass."""
        probe = self._probe(activation, has_residual)
        if activation is not NOT_FUSED and _passes(replace(probe, activation=NOT_FUSED), rows):
            return no_kernel(f"{activation.name} of {probe.outputs} numbers")
        kind = str(probe.kernels or probe.dtype).removeprefix("torch.")
        fewer = "call torch.set_num_threads(1), " * (probe.threads > 1)
        return ValueError(
            f"batch_invariant=True cannot be kept on this CPU: with {probe.threads} threads the "
            f"kernel {kind} for {probe.inputs} inputs and {probe.outputs} outputs gives a row "
            f"other bits in a call of {rows} rows. Use dtype='float32', {fewer}or set "
            "batch_invariant=False."
        )


def _filled_up(count: int) -> int:
    """The number of rows in a call for so many."""
    return max(FEWEST_ROWS, rounded_up(count))


def _call_with(
    product: Product, rows: int, states: Tensor, residual: Tensor | None, activation: Fused
) -> Tensor:
    """Calls a kernel with so many rows. Missing rows are zeros."""
    count = len(states)
    if count == rows:
        return product(states, residual, activation)
    missing = (0, 0, 0, rows - count)
    residual = None if residual is None else nn.functional.pad(residual, missing)
    output = product(nn.functional.pad(states, missing), residual, activation)
    if output.requires_grad:
        return output[:count].clone()
    return output.resize_(count, output.shape[1])  # in place: no copy


def probe_of(layer: nn.Linear, outputs: int, kernels: Any = None) -> Probe:
    """The probe of a layer, or of layers like it side by side."""
    dtype = layer.weight.dtype if kernels is None else kernels.states_dtype
    has_bias = layer.bias is not None
    return Probe(kernels, layer.in_features, outputs, dtype, has_bias, NOT_FUSED, False, 1)


def _passes(probe: Probe, rows: int) -> bool:
    """Whether a call of so many rows may be made."""
    return _is_steady(probe) and _agrees(probe, rows)


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
    """Numbers for a kernel of this kind, that tell one order of summation from another.

    All terms of every other row cancel, so its outputs are the rounding errors of the sums. They
    differ with the order even where ordinary outputs, rounded to half precision, seldom do. The
    factors keep errors and partial sums within float16.

    Args:
        probe: The kind.
        count: The number of different rows.

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
    product = live_product(layer) if kernels is None else kernels.pack_bare(layer)

    def compute(places: Tensor, rows: int) -> Tensor:
        added = residual[places] if probe.has_residual else None
        output = _call_with(product, rows, states[places], added, probe.activation)
        return output.view(torch.int16 if output.itemsize == 2 else torch.int32)

    return compute
