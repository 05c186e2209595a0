"""Times in turns, and the processor's name.

Times are wall-clock seconds, after the accelerator is synchronized.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

Call = Callable[[], Any]

#: A turn repeats a short call until this many seconds have passed.
TURN_SECONDS = 0.1
#: Shorter calls run once untimed before a turn: caches are cold, and threads of the previous call
#: are still busy-waiting.
SETTLE_BELOW_SECONDS = 0.5
#: Variables that restrict the instructions of torch, oneDNN, FBGEMM and CTranslate2.
LOWERED_BY = (
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "FBGEMM_ENABLE_INSTRUCTIONS",
    "CT2_FORCE_CPU_ISA",
)


@contextlib.contextmanager
def without_garbage() -> Iterator[None]:
    """Collects garbage now, and none until the end."""
    is_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


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
    for number in range(rounds):
        order = range(len(calls))
        with without_garbage():
            for index in reversed(order) if number % 2 else order:
                times[index].append(turn(calls[index], TURN_SECONDS))
    return times


def device_wait(device: str) -> Call | None:
    """A function that waits for a device; None for the CPU, whose calls are synchronous."""
    return None if device == "cpu" else torch.accelerator.synchronize


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
