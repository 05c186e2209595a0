"""The kernels of linear layers on this CPU.

torch has two libraries of matrix multiplications for the CPU. oneDNN reads weights in blocks, a
layout that is made once per weight. torch's own `linear` (MKL) reads the weight as it is. For many
rows of float32 it is faster on some processors, which is measured once per process. Exactness and
batch invariance are probed at run time, for every number of rows and of threads. They do not depend
on the instruction set's name.

Notation: N outputs of a linear layer.
"""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import nn

from .int8 import FewInt8Sums, Form, Int8Product, Int8Sums, SharedRange
from .linear import (
    FEW_ROWS,
    FloatProduct,
    Product,
    has_avx512,
    has_onednn,
)
from .steady import SteadyProduct, probe_of

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
}
#: torch's own kernel must be this much faster than oneDNN's to be chosen: measured times vary a
#: little, and the choice should be the same the next time.
MARGIN = 1.07
#: The same of a half precision over float32. Some CPUs compute both in the same time.
HALF_MARGIN = 1.25
#: `FEW_ROWS` for int8 without VNNI instructions: oneDNN needs more rows there to be faster.
FEW_INT8_ROWS = 192
Int8Kind: TypeAlias = type[Int8Sums] | type[FewInt8Sums] | type[SharedRange]


@dataclass(frozen=True)
class Kernels:
    """The kernels that compute the linear layers of one precision."""

    dtype: torch.dtype
    #: oneDNN computes up to so many rows, torch more.
    most_rows: float = math.inf
    #: int8: the largest weight.
    limit: int = 127
    #: int8: FBGEMM computes up to so many rows, oneDNN more.
    few_rows: int = 0
    #: Whether a row must have the same bits in any number of rows.
    batch_invariant: bool = False

    @property
    def states_dtype(self) -> torch.dtype:
        """The dtype of the states."""
        return torch.float32 if self.dtype == torch.int8 else self.dtype

    def pack(self, *layers: nn.Linear, form: Form | None = None) -> Product:
        """Layers side by side, as these kernels read their weights.

        Args:
            *layers: The layers.
            form: Of int8, how states are quantised.
        """
        product = self.pack_bare(*layers, form=form)
        if not self.batch_invariant:
            return product
        outputs = sum(layer.out_features for layer in layers)
        return SteadyProduct(product, probe_of(layers[0], outputs, self))

    def pack_bare(self, *layers: nn.Linear, form: Form | None = None) -> Product:
        """The same without `SteadyProduct`."""
        if self.dtype == torch.int8:
            return Int8Product(layers, self.limit, self.few_rows, form)
        # With AVX-512 oneDNN's activations are as fast as torch's, and save a pass over the output.
        # Without, they are slower; for few rows the call that they save makes up for that.
        few = 0 if self.batch_invariant else FEW_ROWS
        return FloatProduct(layers, self.most_rows, math.inf if has_avx512() else few)

    @property
    def precision(self) -> str:
        """The dtype, and its range if that is smaller."""
        return str(self.dtype).removeprefix("torch.") + " (weights of 7 bits)" * (self.limit < 127)

    def __str__(self) -> str:
        if self.few_rows:
            return f"{self.precision} by fbgemm up to {self.few_rows} rows, beyond by onednn"
        beyond = f" up to {self.most_rows} rows, beyond by torch"
        return f"{self.precision} by onednn{beyond * (self.most_rows < math.inf)}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _chosen_here, (self.dtype, self.batch_invariant)


def _chosen_here(dtype: torch.dtype, batch_invariant: bool) -> Kernels | None:
    """The kernels of this machine for a model that was prepared on another; None if none."""
    has_none = why_no_kernels(dtype) is not None
    return None if has_none else choose(dtype, batch_invariant)


def choose(dtype: torch.dtype, batch_invariant: bool = False) -> Kernels:
    """The kernels for linear layers of this precision on this machine.

    Args:
        dtype: One of `DTYPES`.
        batch_invariant: Whether a row has to have the same bits in any number of rows.

    Raises:
        ValueError: There are no such kernels here (see `why_no_kernels`).
    """
    reason = why_no_kernels(dtype)
    if reason is not None:
        raise ValueError(reason)
    # Libraries round in their own ways, so only one of them is batch-invariant.
    may_change = not batch_invariant
    if dtype == torch.int8:
        limit = _int8_limit(Int8Sums) or 0
        is_exact = all(_int8_limit(kind) in (127, limit) for kind in (FewInt8Sums, SharedRange))
        few_rows = (FEW_ROWS if limit == 127 else FEW_INT8_ROWS) * (may_change and is_exact)
        return Kernels(dtype, limit=limit, few_rows=few_rows, batch_invariant=batch_invariant)
    is_mixed = may_change and dtype == torch.float32 and _torch_is_faster()
    return Kernels(dtype, FEW_ROWS if is_mixed else math.inf, batch_invariant=batch_invariant)


def fastest_dtype(device: torch.device) -> torch.dtype:
    """The fastest precision with kernels here whose error is bfloat16's or less.

    On the CPU it is bfloat16 if there are kernels, else float16, else float32.
    On accelerators it is bfloat16 if they have it, else float16.
    """
    if device.type != "cpu":
        is_old = device.type != "cuda" or not torch.cuda.is_bf16_supported()
        return torch.float16 if is_old else torch.bfloat16
    halves = (torch.bfloat16, torch.float16)
    has_kernels = (dtype for dtype in halves if why_no_kernels(dtype) is None)
    return next(has_kernels, torch.float32)


def why_no_kernels(dtype: torch.dtype) -> str | None:
    """Why there are no kernels worth using for this precision here, or None if there are."""
    if not has_onednn():
        return "this torch comes without oneDNN"
    supported: dict[torch.dtype, Callable[[], Any]] = {
        torch.float32: lambda: True,
        torch.int8: lambda: _int8_limit(Int8Sums),
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    # oneDNN emulates bfloat16 on a CPU that has no more than AVX-512, and is many times slower.
    is_half = dtype in (torch.bfloat16, torch.float16)
    if dtype in supported and supported[dtype]() and (not is_half or _half_is_fast(dtype)):
        return None
    exact = "exact " * (dtype == torch.int8)
    return f"this CPU has no {exact}kernels for {str(dtype).removeprefix('torch.')}"


@cache
def _torch_is_faster() -> bool:
    """Whether for many rows of float32 torch's own kernel is faster than oneDNN's."""
    layers = [_layer(torch.float32)]
    own, onednn = _seconds(FloatProduct(layers, 0, 0), FloatProduct(layers, math.inf, 0))
    return own * MARGIN < onednn


@cache
def _half_is_fast(dtype: torch.dtype) -> bool:
    """Whether oneDNN's kernel of this type is clearly faster than its float32 kernel."""
    kinds = (dtype, torch.float32)
    half, full = _seconds(*(FloatProduct([_layer(kind)], math.inf, 0) for kind in kinds))
    return half * HALF_MARGIN < full


def _layer(dtype: torch.dtype) -> nn.Linear:
    """A layer to try. It draws no random numbers, since that would change the caller's."""
    layer = nn.utils.skip_init(nn.Linear, 768, 768, device="cpu", dtype=dtype)
    for part in layer.parameters():
        nn.init.constant_(part, 0.01)
    return layer


@torch.no_grad()
def _seconds(*products: FloatProduct) -> list[float]:
    """The minimum of five times of each kernel: 512 rows, by one thread, in turns.

    A first run is not counted. The clock counts the thread's own time, because the choice must
    not depend on other work on the machine. On Windows that clock is too coarse.
    """
    clock = time.perf_counter if sys.platform == "win32" else time.thread_time
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times: list[list[float]] = [[] for _ in products]
        for _ in range(6):
            for product, own in zip(products, times, strict=True):
                states = torch.ones(512, 768, dtype=product.bias.dtype, device="cpu")
                begin = clock()
                product(states)
                own.append(clock() - begin)
        return [min(own[1:]) for own in times]
    finally:
        torch.set_num_threads(threads)


@cache
def _int8_limit(kind: Int8Kind) -> int | None:
    """The largest weight for which a library's sums are exact; None if none is exact.

    Without VNNI instructions libraries add two terms in 16 bits, where 8-bit weights saturate and
    7-bit weights do not. So the largest possible sums are tried.
    """
    return next((limit for limit in (127, 63) if _is_exact(kind, limit)), None)


def _is_exact(kind: Int8Kind, limit: int) -> bool:
    """Whether the sums of the largest numbers are exact, for few and many rows.

    States are 255 as unsigned bytes, and 0 among the first four rows: a shared range is all bytes.
    """
    weight = torch.full((35, 203), limit, dtype=torch.int8, device="cpu")
    weight[1::3] = -limit
    weight[2::3, ::2] = -limit
    ones = torch.ones(len(weight), device="cpu", dtype=torch.float32)
    states = torch.full(
        (2 * FEW_ROWS + 1, weight.shape[1]), 127.0, dtype=torch.float32, device="cpu"
    )
    states[3::5] = -128
    states[4::5, 1::2] = 1
    expected = states @ weight.float().T  # below 2²⁴, where float32 holds all whole numbers
    try:
        with torch.no_grad():
            sums = kind(weight, ones)
            return all(
                torch.equal(sums(states[:n].clone()), expected[:n]) for n in (4, 7, len(states))
            )
    except (RuntimeError, AttributeError, NotImplementedError):  # differs between releases of torch
        return False
