"""The peak memory of a call, in MiB above what is held before it."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from hf_bert_impl.measuring.timing import Call

MIB = 2**20


def peak(call: Call, device: str, release: Call | None = None) -> float | None:
    """What a call takes where a model computes: see `resident_peak` and `cuda_peak`."""
    return resident_peak(call, release) if device == "cpu" else cuda_peak(call)


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


def process_peak() -> float:
    """The most memory that this process held since `resident_peak` began, weights included, MiB."""
    return _status_kib("VmHWM") * 1024 / MIB


def _status_kib(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0])
    raise KeyError(field)


def cuda_peak(call: Call) -> float:
    """The peak of torch's CUDA memory during a call above what is allocated before it, in MiB."""
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
