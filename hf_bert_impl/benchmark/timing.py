"""Measuring: times in turns, the machine's best matrix product, and peak memory.

Times are wall-clock seconds; on CUDA the device is waited for before each reading of the clock.
"""

from __future__ import annotations

import ctypes
import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Call = Callable[[], Any]

#: A turn repeats a short call until this many seconds have passed.
TURN_SECONDS = 0.1
#: Before a turn of calls shorter than this one runs untimed: it meets cold caches, and the threads
#: of whoever ran before, which look for work for some milliseconds before they sleep.
SETTLE_BELOW_SECONDS = 0.5
PRODUCT_ROWS = 2048
PRODUCT_REPEATS = 5
MIB = 2**20


def turn(call: Call, seconds: float, wait: Call | None = None) -> float:
    """Time a call: its seconds, the mean over as many repeats as fill `seconds`.

    Args:
        call: What to time.
        seconds: How long a turn lasts at least.
        wait: Waits for the device; None where calls are synchronous.
    """

    def timed(repeats: int) -> float:
        begin = time.perf_counter()
        for _ in range(repeats):
            call()
        if wait is not None:
            wait()
        return (time.perf_counter() - begin) / repeats

    first = timed(1)
    if first >= SETTLE_BELOW_SECONDS:
        return first
    return timed(max(1, math.ceil(seconds / max(first, 1e-6))))


def in_turns(calls: Sequence[Call], rounds: int, wait: Call | None = None) -> list[list[float]]:
    """Time calls in turns, the order reversed each round.

    Args:
        calls: What to time; each runs once untimed before the first round.
        rounds: How many times each is timed.
        wait: Waits for the device.

    Returns:
        For each call its seconds, a round each.
    """
    for call in calls:
        call()
    times: list[list[float]] = [[] for _ in calls]
    # Garbage is collected between rounds, not within one.
    collecting = gc.isenabled()
    gc.disable()
    try:
        for number in range(rounds):
            order = range(len(calls))
            gc.collect()
            for index in reversed(order) if number % 2 else order:
                times[index].append(turn(calls[index], TURN_SECONDS, wait))
    finally:
        if collecting:
            gc.enable()
    return times


def device_wait(device: str) -> Call | None:
    """What waits for a device; None for the CPU, whose calls return when they are done."""
    if not device.startswith("cuda"):
        return None
    import torch

    return torch.cuda.synchronize


def best_product(hidden: int, inner: int, dtype: str, device: str = "cpu") -> dict[str, float]:
    """The matrix products that bound a model of these sizes, measured now.

    Args:
        hidden: D.
        inner: F; products are of 2048 rows by D x D, D x F and F x D.
        dtype: `float32`, `bfloat16` or `int8`.
        device: Where.

    Returns:
        By kernel the rate of its best shape in GFLOP/s (median of 5): `linear` (`F.linear`),
        `packed` (oneDNN with weights reordered once) and for int8 `int_mm`. Kernels that this
        torch lacks are left out.
    """
    import torch

    wait = device_wait(device)
    rates: dict[str, float] = {}
    for inputs, outputs in ((hidden, hidden), (hidden, inner), (inner, hidden)):
        operations = 2 * PRODUCT_ROWS * inputs * outputs
        for name, call in _products(torch, inputs, outputs, dtype, device).items():
            try:
                with torch.inference_mode():
                    call()
                    seconds = [turn(call, 0.02, wait) for _ in range(PRODUCT_REPEATS)]
            except (RuntimeError, NotImplementedError):
                continue  # no such kernel here: the other products are the ceiling
            rates[name] = max(rates.get(name, 0.0), operations / statistics.median(seconds) / 1e9)
    return rates


def _products(library: Any, inputs: int, outputs: int, dtype: str, device: str) -> dict[str, Call]:
    torch = library
    if dtype == "int8":
        left = torch.randint(-127, 127, (PRODUCT_ROWS, inputs), dtype=torch.int8, device=device)
        right = torch.randint(-127, 127, (outputs, inputs), dtype=torch.int8, device=device).t()
        return {"int_mm": lambda: torch._int_mm(left, right)}
    kind = getattr(torch, dtype)
    states = torch.randn(PRODUCT_ROWS, inputs, dtype=kind, device=device)
    weight = torch.randn(outputs, inputs, dtype=kind, device=device)
    calls: dict[str, Call] = {"linear": lambda: torch.nn.functional.linear(states, weight)}
    from hf_bert_impl.model.cpu_kernels import has_onednn

    mkldnn = torch.ops.mkldnn
    if device == "cpu" and has_onednn():
        try:
            packed = mkldnn._reorder_linear_weight(weight, PRODUCT_ROWS)
        except (RuntimeError, NotImplementedError):
            return calls  # oneDNN has no kernel of this precision for this CPU
        calls["packed"] = lambda: mkldnn._linear_pointwise(states, packed, None, "none", [], "")
    return calls


def resident_peak(call: Call, release: Call | None = None) -> float | None:
    """How far this process's resident memory rises while a call runs, in MiB.

    Linux counts it for us: writing 5 to `clear_refs` sets the high-water mark (`VmHWM`) to the
    present size. Before that, memory that is free but still held is handed back (`malloc_trim`,
    and `release` for a runtime with an arena of its own), since a call that reuses it would seem to
    need none. Unlike torch's own counters it sees every library's memory, oneDNN's included.

    Args:
        call: What to measure.
        release: Makes the runtime hand back what it keeps between calls.

    Returns:
        MiB, or None where the system does not count it.
    """
    gc.collect()
    if release is not None:
        release()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = _status_kib("VmRSS")
        result = call()
        after = _status_kib("VmHWM")
    except (OSError, AttributeError, KeyError):
        return None
    del result
    return max(0, after - before) * 1024 / MIB


def _status_kib(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0])
    raise KeyError(field)


def cuda_peak(call: Call) -> float:
    """The peak of torch's CUDA memory during a call above what is allocated before it, in MiB."""
    import torch

    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    del result
    return max(0, peak - before) / MIB


def tensor_peak(call: Call) -> float:
    """The peak of the CPU tensors alive during a call above those alive before it, in MiB.

    torch's profiler records every allocation and release of its CPU allocator; the peak of their
    running sum is the same on every run and machine. What oneDNN allocates for itself is not in it.
    """
    from torch.profiler import ProfilerActivity, profile

    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        result = call()
    del result
    return _running_peak(recorded) / MIB


def _running_peak(recorded: torch.profiler.profile) -> int:
    results: Any = recorded.profiler
    changes = sorted(
        (event.start_ns(), event.nbytes())
        for event in results.kineto_results.events()
        if event.name() == "[memory]" and event.device_type().name == "CPU"
    )
    alive = peak = 0
    for _, size in changes:
        alive += size
        peak = max(peak, alive)
    return peak
