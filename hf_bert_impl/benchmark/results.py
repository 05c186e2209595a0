"""What a run found: rows, what was not available, and where it ran."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
from typing import Any

import torch

from hf_bert_impl.benchmark.contest import CAN_STOP
from hf_bert_impl.measuring.timing import cpu_name, instruction_set

RUNTIMES = ("torch", "transformers", "onnxruntime", "openvino", "ctranslate2")
PACKAGES = ("hf_bert_impl", *RUNTIMES, "sentence-transformers")


@dataclasses.dataclass
class Row:
    """One of ours beside one peer, on one case."""

    case: str
    rows: int
    """Sequences in the batch, or texts."""
    tokens: int
    """Real tokens."""
    padding: float
    """Share of the padded batch that is padding."""
    ours: str
    """`unchanged`, `prepared` or `TextEncoder`."""
    ours_dtype: str
    peer: str
    peer_dtype: str
    ours_ms: float
    """Median milliseconds; of texts the sum over all parts."""
    peer_ms: float
    ratio: float
    """How many times as long the peer took: the median of the rounds' ratios."""
    ratio_min: float
    ratio_max: float
    rounds: int
    ours_error: float
    """Largest difference from transformers' float32 eager states at attended positions; of texts
    from the vectors of sentence-transformers in float32."""
    peer_error: float


@dataclasses.dataclass(frozen=True)
class Missing:
    """A peer, or one of ours, that could not run, and why."""

    peer: str
    dtype: str
    reason: str
    case: str = "all"


@dataclasses.dataclass
class Results:
    """Everything that a run found."""

    environment: dict[str, Any]
    settings: dict[str, Any]
    rows: list[Row] = dataclasses.field(default_factory=list)
    missing: list[Missing] = dataclasses.field(default_factory=list)
    kernels: dict[str, str | None] = dataclasses.field(default_factory=dict)
    """What computed the prepared model, by precision; None where nothing could be prepared."""


def environment(device: str, threads: int) -> dict[str, Any]:
    """Versions, processor, device and threads of this run."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "instruction_set": instruction_set(),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else "cpu",
        "threads": threads,
        # Whether contestants are stopped while it is not their turn.
        "stopped": CAN_STOP,
    }
    for package in PACKAGES:
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            facts[package] = None
    return facts
