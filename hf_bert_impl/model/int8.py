"""Products of int8: weights with a scale per output, states with a scale per token.

With V the rounded weights and the bytes q = round(x / scale) + zero of a state x,
x · Wᵀ = scale · weight_scale · ((q - zero) · Vᵀ). That sum is exact, in int32; the rest is float32.

A feature that is large in all tokens takes most of the bytes' range from the others. So states are
divided by a balance, and weights multiplied by it, as in SmoothQuant (Xiao et al. 2023, section 4).
Balance and zero are tried on random tokens, whose large features are also large in texts. Each
call finds its own range.

Notation: T rows, N outputs of a linear layer, R sequences of S tokens.
"""

import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .linear import NOT_FUSED, TYPICAL_ROWS, Fused, Product, finish, joined, rounded_up

_engine_lock = threading.Lock()
#: Libraries for x86 take states as unsigned bytes; this bit makes them of signed ones.
SIGN = 128
#: The smallest scale, of states that are zero.
SMALLEST = 1e-12
#: Few rows share a range if that gives at most so many times the error of a plain range per token.
SHARED_ERROR = 3.0
#: With a lower zero, as after a GELU, they do not. A few tokens of a text, such as separators, may
#: then have far larger numbers than random tokens.
LEAST_SHARED_ZERO = 64


class Form(NamedTuple):
    """How the states of a linear layer are quantised."""

    zero: int = SIGN
    """The byte of 0.0."""
    balance: Tensor | None = None
    """(in,), powers of two, which change no other bits of a number; None for ones."""
    shares_range: bool = False
    """Whether few rows may have one range, which a library finds in the product's own call."""


PLAIN = Form()


class Int8Product(Product):
    """int8 weights and states.

    Args:
        layers: Side by side.
        limit: The largest |V|: 127, or 63 (7 bits) where larger sums would saturate.
        few_rows: FBGEMM multiplies up to so many rows, oneDNN more.
        form: Of the states.
    """

    dtype = torch.float32

    def __init__(
        self, layers: Sequence[nn.Linear], limit: int, few_rows: int = 0, form: Form | None = None
    ) -> None:
        self.zero, balance, shares_range = form or PLAIN
        weight, self.bias = (part.float() for part in joined(layers))
        self.inverse = None if balance is None else 1 / balance
        whole, scale = _rounded(weight if balance is None else weight * balance, limit)
        whole, self.few_rows = whole.to(torch.int8), few_rows or -1  # no rows are oneDNN's too
        self.sums = Int8Sums(whole, scale, self.zero)
        self.few_sums = self.shared = None
        self.copies_bias = len(layers) > 1
        if few_rows and shares_range:
            self.shared, self.copies_bias = SharedRange(whole, scale, self.bias), True
        elif few_rows:
            self.few_sums = FewInt8Sums(whole, scale, self.zero)
        self.fit = Fit(self.zero)

    def __call__(
        self, states: Tensor, residual: Tensor | None = None, activation: Fused = NOT_FUSED
    ) -> Tensor:
        """See `Product`."""
        rows = states.shape[0]
        if states.ndim != 2 or rounded_up(rows) != rows:
            return self.fitted(states, residual, activation)
        if self.inverse is not None:
            states = states * self.inverse
        is_few = rows <= self.few_rows
        if is_few and self.shared is not None:
            return finish(self.shared(states), residual, activation)
        scale = self.fit(states)
        sums: Any = self.few_sums if is_few else self.sums
        output = sums(states / scale)  # (T, N)
        # In place: a new block of this size costs more to get from the system than to fill.
        return finish(torch.addcmul(self.bias, output, scale, out=output), residual, activation)


class Fit:
    """The smallest scales with which rows fit into bytes around `zero`."""

    def __init__(self, zero: int) -> None:
        # As tensors: torch would make one of a number in each call.
        factors = torch.tensor([1 / (255 - zero), -1 / zero], dtype=torch.float32, device="cpu")
        self.above, self.below = factors.unbind()

    def __call__(self, states: Tensor) -> Tensor:
        """(T, in) to (T, 1)."""
        # Not `aminmax`, which is ten times slower on the CPU.
        high, low = states.amax(-1, keepdim=True), states.amin(-1, keepdim=True)
        return torch.maximum(high.mul_(self.above), low.mul_(self.below)).clamp_(min=SMALLEST)


def _rounded(weight: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """(N, in) to V, whole numbers of the same shape, and their scale (N,)."""
    scale = weight.abs().amax(dim=1).clamp(min=SMALLEST) / limit
    return (weight / scale[:, None]).round(), scale


class Int8Sums:
    """scale · (round(states) · Vᵀ), V (N, in) int8 with `scale` (N,), by oneDNN."""

    def __init__(self, weight: Tensor, scale: Tensor, zero: int = SIGN) -> None:
        self.scale, self.zero = scale, zero
        self.weight = torch.ops.onednn.qlinear_prepack(weight, [TYPICAL_ROWS, weight.shape[1]])
        self.zero_points = torch.zeros(weight.shape[0], dtype=torch.int32, device="cpu")

    def __call__(self, states: Tensor) -> Tensor:
        """(T, in) float32 between -zero and 255 - zero, overwritten, to (T, N) float32."""
        whole = states.round_() if self.zero == SIGN else states.add_(self.zero - SIGN).round_()
        # First to signed bytes, which one bit makes unsigned: the direct way is eight times slower.
        whole = whole.to(torch.int8).view(torch.uint8).bitwise_xor_(SIGN)
        return torch.ops.onednn.qlinear_pointwise.default(
            *(whole, 1.0, self.zero, self.weight, self.scale, self.zero_points),
            *(None, 1.0, 0, torch.float32, "none", [], ""),
        )


class FewInt8Sums:
    """The same by FBGEMM, in one call: for few rows twice as fast as oneDNN with AVX2."""

    def __init__(self, weight: Tensor, scale: Tensor, zero: int = SIGN) -> None:
        self.packed, self.zero = _packed(weight, scale, None), zero
        # Looked up once, without the call around it: for few rows both can be measured.
        quantised = torch.ops.quantized
        self.multiply = quantised.linear_with_input_q_dq_qweight_dq_output_fp32.default._op

    def __call__(self, states: Tensor) -> Tensor:
        """See `Int8Sums`; the states stay."""
        output: Tensor = self.multiply(states, 1.0, self.zero, self.packed)
        return output


class SharedRange:
    """FBGEMM's matrix multiplication with one range for all states of a call; adds the bias."""

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        self.packed = _packed(weight, scale, bias)
        self.multiply = torch.ops.quantized.linear_dynamic.default._op

    def __call__(self, states: Tensor) -> Tensor:
        """(T, in) to (T, N), float32; states from -128 to 127 have a scale of 1."""
        output: Tensor = self.multiply(states, self.packed)
        return output


@contextmanager
def fbgemm() -> Iterator[None]:
    """Weights are packed by FBGEMM inside: the library is a setting of the whole process."""
    with _engine_lock:
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = "fbgemm"
        try:
            yield
        finally:
            torch.backends.quantized.engine = before


def _packed(weight: Tensor, scale: Tensor, bias: Tensor | None) -> Any:
    """Weights for FBGEMM.

    torch announces the end of tensors of this kind; without them oneDNN computes all rows.
    """
    zero_points = torch.zeros(weight.shape[0], dtype=torch.long, device="cpu")
    with fbgemm(), warnings.catch_warnings(action="ignore"):
        per_output = torch._make_per_channel_quantized_tensor(
            weight, scale.double(), zero_points, 0
        )
        return torch.ops.quantized.linear_prepack(per_output, bias)


# --- the form of a layer ------------------------------------------------------------------------


def try_forms(
    encoder: nn.Module, embeddings: Tensor, places: Sequence[tuple[Any, ...]], limit: int
) -> dict[tuple[Any, ...], Form]:
    """The best form for each place of an encoder, by its states of some sequences.

    Args:
        encoder: In eval mode, of float32.
        embeddings: (R, S, D), its input.
        places: Of each the linear layers side by side.
        limit: As in `Int8Product`.

    Returns:
        By place; without the places that the encoder does not call.
    """
    states: dict[tuple[Any, ...], Tensor] = {}

    def keep(layers: tuple[Any, ...], _: Any, inputs: tuple[Tensor, ...]) -> None:
        states[layers] = inputs[0].flatten(0, -2)

    hooks = [
        layers[0].register_forward_pre_hook(lambda *call, layers=layers: keep(layers, *call))
        for layers in places
    ]
    try:
        encoder(embeddings)
    finally:
        for hook in hooks:
            hook.remove()
    return {layers: _best_form(joined(layers)[0], rows, limit) for layers, rows in states.items()}


def _best_form(weight: Tensor, states: Tensor, limit: int) -> Form:
    """The form with the smallest error of weight (N, in) with states (T, in)."""
    expected = states @ weight.T
    largest = [part.abs().amax(dim=0).clamp(min=SMALLEST) for part in (states, weight)]
    balance = torch.exp2((largest[0] / largest[1]).log2().div(2).round())  # (in,)
    forms: list[tuple[float, float, Form]] = []
    for each in (None, balance):
        rows = states if each is None else states / each
        whole, scale = _rounded(weight if each is None else weight * each, limit)
        product = whole.T * scale
        zero = _best_zero(rows)
        error, shared = (
            (quantised @ product - expected).square().mean().item()
            for quantised in (_per_token(rows, zero), _per_call(rows))
        )
        forms.append((error, shared, Form(zero, each)))
    most = SHARED_ERROR * forms[0][0]
    _, shared, form = min(forms, key=lambda tried: tried[0] + tried[1])
    return form._replace(shares_range=shared <= most and form.zero >= LEAST_SHARED_ZERO)


def _best_zero(states: Tensor) -> int:
    """The byte of 0.0 for which the scales of rows are smallest."""
    zeros = torch.arange(1, 255, dtype=torch.float32, device="cpu")[:, None]
    scales = torch.maximum(states.amax(-1) / (255 - zeros), -states.amin(-1) / zeros)
    return 1 + int(scales.square().mean(dim=1).argmin())


def _per_token(states: Tensor, zero: int) -> Tensor:
    scale = Fit(zero)(states)
    return (states / scale).round().mul_(scale)


def _per_call(states: Tensor) -> Tensor:
    low, high = states.amin().clamp(max=0), states.amax().clamp(min=0)
    scale = (high - low).clamp(min=SMALLEST) / 255
    return (states / scale).round().mul_(scale)
