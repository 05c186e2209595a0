"""The kernels of linear layers on the CPU: which there are, and which of them computes what.

torch carries three libraries of matrix products, and none is the fastest on every processor, for
every precision and for any number of rows:

- `torch`: its own `linear` (MKL), on the weight as it lies. On AMD's processors MKL keeps to AVX2,
  half the width that those with AVX-512 have.
- `onednn`: reads weights in blocks. Here they are brought into that layout once, by the operators
  that torch's compiler uses for frozen models; bias, activation and residual can be fused.
- `fbgemm`: weights in float16 or int8 that it unpacks on the way. Quick for few rows, where a
  product does little but read its weights.

`choose` says which of them compute a precision here. It depends on what the processor can do, and
in part on a measurement of some 50 ms, once a process. The environment variable
`HF_BERT_KERNELS` names one of the three instead, for all rows.
"""

import os
import platform
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from .products import (
    FEW_ROWS,
    LEAST,
    FbgemmSums,
    Float16Product,
    Int8Product,
    Int8Sums,
    OnednnProduct,
    OnednnSums,
    Product,
    ProductByRows,
    TorchProduct,
    has_avx512,
)

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
}
#: Names one of `LIBRARIES`.
KERNELS_VARIABLE = "HF_BERT_KERNELS"
LIBRARIES = ("torch", "onednn", "fbgemm")

#: In int8 without VNNI instructions, where oneDNN takes more rows to be quicker.
FEW_ROWS_WITHOUT_VNNI = 192
#: From so many weights on they do not lie in a core's cache, and any number of rows is quicker.
MANY_WEIGHTS = 1 << 19
#: Below, so many products of rows and weights outweigh the few microseconds that a call costs more.
MANY_PRODUCTS = 1 << 21
#: Another kernel than oneDNN's has to be so much quicker: what is measured is not quite steady, and
#: the choice is to be the same the next time.
MARGIN = 1.07


@dataclass(frozen=True)
class Kernels:
    """What computes the products of one precision."""

    dtype: torch.dtype
    #: Of `LIBRARIES`, up to `few_rows` rows and beyond.
    few: str
    many: str
    few_rows: int = FEW_ROWS
    #: int8: the largest weight.
    limit: int = 127

    def pack(self, *layers: nn.Linear) -> Product:
        """The layers, whose outputs are joined, with their weights as these kernels read them."""
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
        return OnednnProduct(layers) if library == "onednn" else TorchProduct(layers)

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        if self.dtype == torch.int8 and self.limit < 127:
            kind += " (weights of 7 bits)"
        if self.dtype == torch.float16 and "fbgemm" in (self.few, self.many):
            kind = "float16 weights, float32 states"
        if self.few == self.many:
            return f"{kind} by {self.few}"
        return f"{kind} by {self.few} up to {self.few_rows} rows, beyond by {self.many}"


def choose(dtype: torch.dtype) -> Kernels:
    """What computes linear layers of this precision on this machine.

    Args:
        dtype: Of `DTYPES`. float16 where the CPU computes no float16 means weights of that type
            beside float32 states, by FBGEMM.

    Raises:
        ValueError: There are no such kernels here (see `why_no_kernels`), or `HF_BERT_KERNELS`
            names none of them.
    """
    reason = why_no_kernels(dtype)
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
        return Kernels(dtype, forced, forced, limit=_int8_limit(forced))
    if dtype == torch.int8:
        limit = _int8_limit(*available)
        few_rows = FEW_ROWS if limit == 127 else FEW_ROWS_WITHOUT_VNNI
        return Kernels(dtype, available[-1], available[0], few_rows, limit)
    if available == ("fbgemm", "torch"):
        return Kernels(dtype, *available)
    if dtype == torch.float32 and _torch_is_quicker():
        return Kernels(dtype, "onednn", "torch")
    return Kernels(dtype, "onednn", "onednn")


def fastest_dtype(device: torch.device) -> torch.dtype:
    """The quickest precision with kernels here whose error is bfloat16's or less.

    On the CPU bfloat16 where it is multiplied, else float16 for the weights alone, else float32.
    Accelerators multiply bfloat16, or else float16.
    """
    if device.type != "cpu":
        is_old = device.type != "cuda" or not torch.cuda.is_bf16_supported()
        return torch.float16 if is_old else torch.bfloat16
    for dtype in (torch.bfloat16, torch.float16):
        if why_no_kernels(dtype) is None:
            return dtype
    return torch.float32


def keeps_float32(dtype: torch.dtype) -> bool:
    """Whether only weights are of this precision here, and all states float32."""
    return dtype == torch.int8 or (dtype == torch.float16 and "fbgemm" in libraries(dtype))


def why_no_kernels(dtype: torch.dtype, of_states: bool = False) -> str | None:
    """Why there are no kernels worth using for this precision here, or None if there are.

    Args:
        dtype: The precision.
        of_states: Whether the states are of it, too, not only weights.
    """
    if not has_onednn():
        return "this torch comes without oneDNN"
    if libraries(dtype) and not (of_states and keeps_float32(dtype)):
        return None
    exact = "exact " * (dtype == torch.int8)
    return f"this CPU has no {exact}kernels for {str(dtype).removeprefix('torch.')}"


def has_onednn() -> bool:
    """Whether torch has oneDNN, with the operators for weights in its layout."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@cache
def is_faster_here() -> bool:
    """Whether oneDNN beats torch's own product of float32 on a weight as it lies, not packed.

    MKL keeps to half the width of AMD's processors with AVX-512. On Intel's both are as fast.
    """
    return torch.backends.mkl.is_available() and has_onednn() and has_avx512() and _is_amd()


def _is_amd() -> bool:
    with suppress(OSError), open("/proc/cpuinfo") as file:
        return "AuthenticAMD" in file.read(1000)  # of the first core
    return "AuthenticAMD" in platform.processor()  # Windows has no such file


def is_large(states: Tensor, weight: Tensor) -> bool:
    """Whether the product is worth what the call costs more."""
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
    # oneDNN also imitates bfloat16 where the CPU has AVX-512 alone, many times slower.
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
    """The least of five times of each, 512 rows by one thread, in turns after an uncounted one.

    In the thread's own time, which other work on the machine does not add to: a choice must not
    depend on that. Windows counts it too coarsely.
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
    those of 7 bits do not. So it is tried, on the largest sums that there can be.
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
