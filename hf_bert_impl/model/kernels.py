"""The kernels of linear layers on this CPU, and the preparation of a model for them.

torch has two libraries of matrix multiplications for the CPU. oneDNN reads weights in blocks, a
layout that is made once per weight. torch's own `linear` (MKL) reads the weight as it is. For many
rows of float32 it is faster on some processors, which is measured once per process. The environment
variable `HF_BERT_KERNELS` names one of the two instead. Exactness and batch invariance are probed
at run time, for every number of rows and of threads. They do not depend on the instruction set's
name.

Notation: N outputs of a linear layer.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers.utils import logging

from .attention import BertSelfAttention
from .int8 import FewInt8Sums, Form, Int8Product, Int8Sums, SharedRange, try_forms
from .linear import (
    FEW_ROWS,
    NOT_FUSED,
    FloatProduct,
    Fused,
    Guard,
    HalfProduct,
    LiveProduct,
    Packed,
    Product,
    Steady,
    has_avx512,
    has_onednn,
    type_name,
    why_not_packed,
)

logger = logging.get_logger(__name__)
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
}
#: The precision whose states and sums are float32, while few rows are multiplied by weights of 16
#: bits.
HALF_WEIGHTS = "float16-weights"
#: The environment variable that names one of `LIBRARIES`.
KERNELS_VARIABLE = "HF_BERT_KERNELS"
LIBRARIES = ("onednn", "torch")
#: torch's own kernel must be this much faster than oneDNN's to be chosen: measured times vary a
#: little, and the choice should be the same the next time.
MARGIN = 1.07
#: `FEW_ROWS` for int8 without VNNI instructions: oneDNN needs more rows there to be faster.
FEW_INT8_ROWS = 192
#: `SteadyProduct` compares every other number of rows with calls of this many.
BLOCK_ROWS = 32
#: The largest number of rows in one call of `SteadyProduct`.
MAX_ROWS = 512
#: The minimum number of outputs that is compared. Rows of few outputs are compared repeatedly.
COMPARED = 16
#: int8 tries its forms on so many random sequences of so many tokens.
TRIED_SEQUENCES, TRIED_TOKENS = 4, 32
Int8Kind: TypeAlias = type[Int8Sums] | type[FewInt8Sums] | type[SharedRange]
#: torch allocates memory at multiples of this many bytes.
ALIGNMENT = 64


@dataclass(frozen=True)
class Kernels:
    """The kernels that compute the linear layers of one precision."""

    dtype: torch.dtype
    #: oneDNN computes up to so many rows, torch more.
    most_rows: float = math.inf
    #: Whether few rows are multiplied by weights of 16 bits.
    has_half_weights: bool = False
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
        return SteadyProduct(product, _probe(layers[0], outputs, self))

    def pack_bare(self, *layers: nn.Linear, form: Form | None = None) -> Product:
        """The same without `SteadyProduct`."""
        if self.dtype == torch.int8:
            return Int8Product(layers, self.limit, self.few_rows, form)
        # With AVX-512 oneDNN's activations are as fast as torch's, and save a pass over the output.
        # Without, they are slower; for few rows the call that they save makes up for that.
        few = 0 if self.batch_invariant else FEW_ROWS
        product = FloatProduct(layers, self.most_rows, math.inf if has_avx512() else few)
        return HalfProduct(layers, product) if self.has_half_weights else product

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.") + " (weights of 7 bits)" * (self.limit < 127)
        if self.has_half_weights:
            rest = replace(self, has_half_weights=False)
            return f"{rest}; up to {FEW_ROWS} rows by fbgemm with weights of 16 bits"
        if not self.most_rows:
            return f"{kind} by torch"
        if self.few_rows:
            return f"{kind} by fbgemm up to {self.few_rows} rows, beyond by onednn"
        beyond = f" up to {self.most_rows} rows, beyond by torch"
        return f"{kind} by onednn{beyond * (self.most_rows < math.inf)}"

    def __reduce__(self) -> tuple[Any, ...]:
        precision = HALF_WEIGHTS if self.has_half_weights else self.dtype
        return _chosen_here, (precision, self.batch_invariant)


def _chosen_here(dtype: torch.dtype | str, batch_invariant: bool) -> Kernels | None:
    """The kernels of this machine for a model that was prepared on another; None if none."""
    has_none = why_no_kernels(dtype, batch_invariant) is not None
    return None if has_none else choose(dtype, batch_invariant)


def choose(dtype: torch.dtype | str, batch_invariant: bool = False) -> Kernels:
    """The kernels for linear layers of this precision on this machine.

    Args:
        dtype: One of `DTYPES`, or `HALF_WEIGHTS`.
        batch_invariant: Whether a row has to have the same bits in any number of rows.

    Raises:
        ValueError: There are no such kernels here (see `why_no_kernels`), or `HF_BERT_KERNELS`
            names none of them.
    """
    reason = why_no_kernels(dtype, batch_invariant)
    if reason is not None:
        raise ValueError(reason)
    if dtype == HALF_WEIGHTS:
        is_forced = bool(os.environ.get(KERNELS_VARIABLE))
        return replace(choose(torch.float32), has_half_weights=not is_forced)
    assert isinstance(dtype, torch.dtype)
    forced = os.environ.get(KERNELS_VARIABLE)
    if forced:
        _check_forced(forced, dtype, batch_invariant)
    # Libraries round in their own ways, so only one of them is batch-invariant.
    may_change = not (forced or batch_invariant)
    if dtype == torch.int8:
        limit = _int8_limit(Int8Sums) or 0
        is_exact = all(_int8_limit(kind) in (127, limit) for kind in (FewInt8Sums, SharedRange))
        few_rows = (FEW_ROWS if limit == 127 else FEW_INT8_ROWS) * (may_change and is_exact)
        return Kernels(dtype, limit=limit, few_rows=few_rows, batch_invariant=batch_invariant)
    most_rows = 0 if forced == "torch" else math.inf
    if may_change and dtype == torch.float32 and _torch_is_faster():
        most_rows = FEW_ROWS
    return Kernels(dtype, most_rows, batch_invariant=batch_invariant)


def _check_forced(forced: str, dtype: torch.dtype, batch_invariant: bool) -> None:
    """Raises ValueError if the library that the environment names does not compute this."""
    available = LIBRARIES if dtype == torch.float32 else ("onednn",)
    if forced not in available:
        kind = str(dtype).removeprefix("torch.")
        raise ValueError(
            f"{KERNELS_VARIABLE} is {forced!r}; for {kind} on this CPU it can be "
            f"{' or '.join(available)}, or unset"
        )
    if forced == "torch" and batch_invariant:
        raise ValueError(
            f"{KERNELS_VARIABLE} is 'torch', whose bits depend on the number of rows; unset it, or "
            "set batch_invariant=False"
        )


def fastest_dtype(device: torch.device, batch_invariant: bool = False) -> torch.dtype | str:
    """The fastest precision with kernels here whose error is bfloat16's or less.

    On the CPU it is bfloat16 if there are kernels, else float16, else `HALF_WEIGHTS`, else float32.
    On accelerators it is bfloat16 if they have it, else float16.
    """
    if device.type != "cpu":
        is_old = device.type != "cuda" or not torch.cuda.is_bf16_supported()
        return torch.float16 if is_old else torch.bfloat16
    halves = (torch.bfloat16, torch.float16, HALF_WEIGHTS)
    has_kernels = (dtype for dtype in halves if why_no_kernels(dtype, batch_invariant) is None)
    return next(has_kernels, torch.float32)


def why_no_kernels(dtype: torch.dtype | str, batch_invariant: bool = False) -> str | None:
    """Why there are no kernels worth using for this precision here, or None if there are."""
    if not has_onednn():
        return "this torch comes without oneDNN"
    supported: dict[torch.dtype | str, Callable[[], Any]] = {
        HALF_WEIGHTS: lambda: not batch_invariant and _half_weights_work(),
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
    """Whether oneDNN's kernel of this type is at least as fast as its float32 kernel."""
    kinds = (dtype, torch.float32)
    half, full = _seconds(*(FloatProduct([_layer(kind)], math.inf, 0) for kind in kinds))
    return half <= full


@cache
@torch.no_grad()
def _half_weights_work() -> bool:
    """Whether FBGEMM multiplies by weights of 16 bits, with no other error than theirs."""
    layer = nn.utils.skip_init(nn.Linear, 203, 35, device="cpu", dtype=torch.float32)
    numbers = torch.arange(35 * 203, dtype=torch.float32, device="cpu").view(35, 203)
    layer.weight.copy_((numbers * 0.37).sin().half())
    layer.bias.copy_(numbers[0, :35].cos())
    states = (numbers * 0.11).cos()
    expected = nn.functional.linear(states.double(), layer.weight.double(), layer.bias.double())
    try:
        found = HalfProduct([layer], FloatProduct([layer], 0, 0))(states)
    except (RuntimeError, AttributeError, NotImplementedError):  # there is no FBGEMM here
        return False
    return bool((found - expected).abs().max() < 1e-4)


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
    states = torch.full((2 * FEW_ROWS + 1, weight.shape[1]), 127.0, device="cpu")
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


# --- preparing a model --------------------------------------------------------------------------


def prepare(model: Any, dtype: torch.dtype | str | None) -> None:
    """Does what `BertPreTrainedModel.prepare_for_inference` says.

    Args:
        model: A BERT of any head.
        dtype: As there.
    """
    check_dtype("dtype", dtype)
    check_weights(model)
    model.eval()
    invariant = model.config.batch_invariant
    precision = _convert(model, dtype)
    drop_prepared(model)
    reason = _why_not(model)
    if reason is not None:
        logger.warning(f"not prepared for inference: {reason}; it computes as usual")
        return
    kernels = choose(precision or model.dtype, invariant)
    guard = Guard(kernels.states_dtype)
    if dtype == "auto":
        logger.warning(f"dtype='auto' is {kernels} here")
    encoder = model.base_model.encoder
    places = [(kernels, *place) for place in packable(encoder, "encoder")]
    predictions = getattr(getattr(model, "cls", None), "predictions", None)
    heads = {"pooler": getattr(model.base_model, "pooler", None), "cls.predictions": predictions}
    has_halves = why_no_kernels(HALF_WEIGHTS, invariant) is None
    is_coarse = precision in (torch.int8, HALF_WEIGHTS)  # int8 is for the encoder alone
    of_head = choose(HALF_WEIGHTS if is_coarse and has_halves else model.dtype, invariant)
    for path, head in heads.items():
        if head is not None:
            places += [(of_head, *place) for place in packable(head, path)]
    forms = _forms(model, kernels) if kernels.dtype == torch.int8 else {}
    for chosen, holder, layers, path in places:
        reason = next(filter(None, map(why_not_packed, layers)), None)
        if reason is not None:
            logger.warning(f"not prepared for inference: {path} {reason}; it computes as usual")
            continue
        form = forms.get(layers)
        if invariant and len(layers) == 1:
            filled: Packed = Steady(chosen, guard, steady_product, form)
        else:
            filled = Packed(chosen, guard, form)
        filled.fill(layers)
        holder.packed, encoder.guard = filled, guard  # type: ignore[assignment]


@torch.no_grad()
def _forms(model: Any, kernels: Kernels) -> dict[tuple[Any, ...], Form]:
    """How int8 quantises the states of the encoder's layers, by random tokens."""
    config, encoder = model.config, model.base_model.encoder
    layers = [place[1] for place in packable(encoder, "")]
    plain = [each for each in layers if not any(map(why_not_packed, each))]
    tokens = min(TRIED_TOKENS, config.max_position_embeddings)
    generator, shape = torch.Generator("cpu").manual_seed(0), (TRIED_SEQUENCES, tokens)
    ids = torch.randint(config.vocab_size, shape, generator=generator, device="cpu")
    embeddings = model.base_model.embeddings(ids, None, torch.arange(tokens, device="cpu")[None])
    return try_forms(encoder, embeddings, plain, kernels.limit)


def _convert(model: Any, dtype: torch.dtype | str | None) -> torch.dtype | str | None:
    """Converts a model to the precision that it is prepared in; gives that, None for its own."""
    is_on_cpu = model.device.type == "cpu"
    precision: Any = DTYPES.get(dtype, dtype) if isinstance(dtype, str) else dtype
    if dtype == "auto":
        precision = fastest_dtype(model.device, model.config.batch_invariant)
    if is_on_cpu and precision in (*DTYPES.values(), HALF_WEIGHTS):
        reason = why_no_kernels(precision, model.config.batch_invariant)
        if reason is not None:  # an emulation would be many times slower
            logger.warning(f"{reason}, so the model computes in float32")
            precision = torch.float32
    if precision in (torch.int8, HALF_WEIGHTS):  # which are for linear layers alone
        if is_on_cpu:
            model.to(torch.float32)
    elif precision is not None:
        model.to(precision)
    return precision


def drop_prepared(model: nn.Module) -> None:
    """Discards what was packed for any part of the model."""
    for module in model.modules():
        if module.__dict__.get("packed") is not None:
            module.packed = None  # type: ignore[assignment]
        if module.__dict__.get("guard") is not None:
            module.guard = None  # type: ignore[assignment]


def prepared_kernels(model: Any) -> Kernels | None:
    """The kernels of a prepared model's encoder; None if none of its weights are packed."""
    for module in model.base_model.modules():
        packed = module.__dict__.get("packed")
        if packed is not None and (packed.product is not None or not packed.layers):
            kernels: Kernels | None = packed.kernels  # of a copy, that it will pack by
            return kernels
    return None


def packable(root: nn.Module, path: str) -> Iterator[tuple[nn.Module, tuple[Any, ...], str]]:
    """Yields each place to pack: the module that holds it, its layers side by side, its path."""
    for name, module in root.named_modules(prefix=path):
        children = module._modules
        if isinstance(module, BertSelfAttention):
            layers = tuple(children[each] for each in ("query", "key", "value"))
            if not module.is_cross_attention:
                yield module, layers, name
        for child in ("dense", "decoder"):
            layer = children.get(child)
            if layer is not None:
                yield layer, (layer,), f"{name}.{child}"


def _why_not(model: Any) -> str | None:
    """Why a model cannot be packed on this machine; None if some of its layers can."""
    place, dtype = model.device.type, model.dtype
    if place != "cpu":
        return f"its weights are on {place}, and the packed kernels are the CPU's"
    if not hasattr(getattr(model.base_model, "encoder", None), "layer"):
        return "it has no encoder of layers"
    return why_no_kernels(dtype, model.config.batch_invariant)


def check_dtype(name: str, dtype: Any, *others: bool) -> None:
    """Checks a precision that a model is to be prepared in.

    Args:
        name: Of the argument, for the message.
        dtype: A name, a dtype, or None for that of the weights.
        others: Further values that the argument may have.

    Raises:
        ValueError: It is none of them.
    """
    precision: Any = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if dtype in (None, "auto", HALF_WEIGHTS) or any(dtype is other for other in others):
        return
    is_type = isinstance(precision, torch.dtype)
    if not is_type or not (precision.is_floating_point or precision == torch.int8):
        known = ", ".join((*DTYPES, HALF_WEIGHTS, "auto", *map(str, others)))
        raise ValueError(f"{name}={dtype!r} is not known; use one of {known}")


def check_weights(model: nn.Module) -> None:
    """Checks that a model's weights are numbers that can be converted.

    Raises:
        ValueError: A weight has no memory, or torch has quantised a module already.
    """
    for path, module in model.named_modules():
        for name, weight in module._parameters.items():
            # accelerate keeps weights elsewhere, and its hook brings them for the call.
            if weight is not None and weight.is_meta and not hasattr(module, "_hf_hook"):
                raise ValueError(
                    f"{path}.{name} is on the meta device, which holds no numbers. Load the model "
                    "by from_pretrained first."
                )
        if hasattr(module, "_packed_params"):
            raise ValueError(
                f"{path} is a {type_name(type(module))}, whose weights are quantised already. Pass "
                "the model before quantisation, and dtype='int8' to quantise it."
            )


# --- batch invariance ---------------------------------------------------------------------------


def make_steady(root: nn.Module) -> None:
    """Makes every linear layer of a batch-invariant model steady, packed or not.

    Raises:
        ValueError: An adapter adds to a layer.
    """
    for module in root.modules():
        if hasattr(module, "lora_A"):
            raise ValueError(
                f"batch_invariant=True cannot be used with a {type_name(type(module))}. Call "
                "merge_and_unload(), or set batch_invariant=False."
            )
        packed = module.__dict__.get("packed")
        if type(module) is nn.Linear and not isinstance(packed, Steady):
            module.packed = Steady(None, Guard(), steady_product)  # type: ignore[assignment]
        elif isinstance(packed, Packed) and packed.kernels and not packed.kernels.batch_invariant:
            module.packed = None  # type: ignore[assignment]  # it was prepared without this


def steady_product(layer: nn.Linear) -> Product:
    """One layer on its weight as it is, with the same bits for a row in any number of rows."""
    return SteadyProduct(LiveProduct(layer), _probe(layer, layer.out_features, None))


@dataclass(frozen=True)
class Probe:
    """Everything that decides the order of a kernel's sums, except the number of rows."""

    #: None for `LiveProduct`.
    kernels: Kernels | None
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
    are computed `BLOCK_ROWS` at a time. The names of kernel and CPU do not matter.

    Args:
        product: The kernel.
        probe: Its kind. Each call has its own activation, residual and threads.
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
        parts = states.split(MAX_ROWS)
        added = [None] * len(parts) if residual is None else residual.split(MAX_ROWS)
        outputs: list[Tensor] = []
        for part, addend in zip(parts, added, strict=True):
            size = self._size(len(part), activation, residual is not None)
            blocks = part.split(size)
            addends = [None] * len(blocks) if addend is None else addend.split(size)
            for block, more in zip(blocks, addends, strict=True):
                outputs.append(_call_with(self.product, size, block, more, activation))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _size(self, rows: int, activation: Fused, has_residual: bool) -> int:
        """The number of rows of a call that computes so many."""
        key = (rows, activation, has_residual, torch.get_num_threads())
        size = self.sizes.get(key)
        if size is None:
            probe = replace(
                self.probe, activation=activation, has_residual=has_residual, threads=key[-1]
            )
            if not _is_steady(probe):
                kind = str(self.probe.kernels or self.probe.dtype).removeprefix("torch.")
                raise ValueError(
                    "batch_invariant=True cannot be kept on this CPU: with "
                    f"{probe.threads} threads the kernel {kind} for {probe.inputs} inputs and "
                    f"{probe.outputs} outputs gives a row other bits at another place. Use another "
                    "dtype, call torch.set_num_threads(1), or set batch_invariant=False."
                )
            size = rounded_up(rows)
            size = self.sizes[key] = size if _agrees(probe, size) else BLOCK_ROWS
        return size


def rounded_up(rows: int) -> int:
    """The number of rows of a call for so many rows, at most `MAX_ROWS`."""
    step = 4 if rows <= 64 else 16
    return max(step, -(-rows // step) * step)


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


def _probe(layer: nn.Linear, outputs: int, kernels: Kernels | None) -> Probe:
    """The probe of a layer, or of layers like it side by side."""
    dtype = layer.weight.dtype if kernels is None else kernels.states_dtype
    has_bias = layer.bias is not None
    return Probe(kernels, layer.in_features, outputs, dtype, has_bias, NOT_FUSED, False, 1)


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
    product = LiveProduct(layer) if kernels is None else kernels.pack_bare(layer)

    def compute(places: Tensor, rows: int) -> Tensor:
        added = residual[places] if probe.has_residual else None
        output = _call_with(product, rows, states[places], added, probe.activation)
        return output.view(torch.int16 if output.itemsize == 2 else torch.int32)

    return compute
