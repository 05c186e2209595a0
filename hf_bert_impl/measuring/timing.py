"""Times in turns, the machine's fastest matrix multiplication, and the processor's name.

Times are wall-clock seconds, after the accelerator is synchronized.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_bert_impl.model.linear import has_onednn

Call = Callable[[], Any]

#: A turn repeats a short call until this many seconds have passed.
TURN_SECONDS = 0.1
#: Shorter calls run once untimed before a turn: caches are cold, and threads of the previous call
#: are still busy-waiting.
SETTLE_BELOW_SECONDS = 0.5
PRODUCT_ROWS = 2048
PRODUCT_REPEATS = 5
#: Variables that restrict the instructions of torch, oneDNN, FBGEMM and CTranslate2.
LOWERED_BY = (
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "FBGEMM_ENABLE_INSTRUCTIONS",
    "CT2_FORCE_CPU_ISA",
)


def turn(call: Call, seconds: float, wait: Call | None = None) -> float:
    """The seconds of a call: the mean over as many repeats as fill `seconds`.

    Args:
        call: The call.
        seconds: The minimum duration of a turn.
        wait: Waits for the device; None for synchronous calls.
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


def in_turns(calls: Sequence[Call], rounds: int) -> list[list[float]]:
    """Time calls in turns, in reversed order every second round.

    Args:
        calls: The calls; each runs once untimed before the first round.
        rounds: Measurements per call.

    Returns:
        For each call its seconds in each round.
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
                times[index].append(turn(calls[index], TURN_SECONDS))
    finally:
        if collecting:
            gc.enable()
    return times


def device_wait(device: str) -> Call | None:
    """A function that waits for a device; None for the CPU, whose calls are synchronous."""
    return None if device == "cpu" else torch.accelerator.synchronize


def best_product(hidden: int, inner: int, dtype: str, device: str = "cpu") -> float:
    """Measure the fastest matrix multiplication of a model of these sizes.

    Args:
        hidden: D.
        inner: F; 2048 rows are multiplied by D x D, D x F and F x D.
        dtype: `float32` or `bfloat16`.
        device: The device.

    Returns:
        GFLOP/s of the best shape (median of 5), by `F.linear` or by oneDNN with weights reordered
        once; 0 if this machine has no kernel.
    """
    wait = device_wait(device)
    form: dict[str, Any] = {"dtype": getattr(torch, dtype), "device": device}
    rates = [0.0]
    for inputs, outputs in ((hidden, hidden), (hidden, inner), (inner, hidden)):
        states = torch.randn(PRODUCT_ROWS, inputs, **form)
        weight = torch.randn(outputs, inputs, **form)
        for product in (_plain, _packed)[: 1 + (device == "cpu" and has_onednn())]:
            with contextlib.suppress(RuntimeError, NotImplementedError), torch.inference_mode():
                call = product(states, weight)
                call()
                seconds = [turn(call, 0.02, wait) for _ in range(PRODUCT_REPEATS)]
                operations = 2 * PRODUCT_ROWS * inputs * outputs
                rates.append(operations / statistics.median(seconds) / 1e9)
    return max(rates)


def _plain(states: Tensor, weight: Tensor) -> Call:
    return functools.partial(torch.nn.functional.linear, states, weight)


def _packed(states: Tensor, weight: Tensor) -> Call:
    mkldnn: Any = torch.ops.mkldnn
    packed = mkldnn._reorder_linear_weight(weight, PRODUCT_ROWS)
    return functools.partial(mkldnn._linear_pointwise, states, packed, None, "none", [], "")


def instruction_set() -> str:
    """torch's widest vector instructions, and the variables that restrict them."""
    level: str = torch.backends.cpu.get_cpu_capability()
    lowered = [f"{name}={os.environ[name]}" for name in LOWERED_BY if os.environ.get(name)]
    return f"{level}, emulated by {' '.join(lowered)}" if lowered else level


def cpu_name() -> str:
    """The system's name of the processor, and torch's instructions."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{name} ({instruction_set()})"
