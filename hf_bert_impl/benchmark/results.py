"""What a run found: rows, what was not available, and where it ran."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
import statistics
from collections.abc import Sequence
from typing import Any

import torch

from hf_bert_impl.benchmark.contest import CAN_STOP
from hf_bert_impl.measuring.timing import cpu_name, instruction_set

PACKAGES = (
    "hf_bert_impl",
    "torch",
    "transformers",
    "numpy",
    "onnx",
    "onnxruntime",
    "openvino",
    "ctranslate2",
    "nncf",
    "sentence-transformers",
)


@dataclasses.dataclass
class Row:
    """One of ours beside one peer, on one case."""

    case: str
    rows: int
    """Sequences in the batch; texts, or pairs of them, where a case begins with text."""
    tokens: int
    """Real tokens."""
    padding: float
    """Share of the padded batch that is padding."""
    ours: str
    """`unchanged`, `prepared`, `training step`, `AdamW step`, `TextEncoder` or `optimized`."""
    ours_dtype: str
    peer: str
    peer_dtype: str
    ours_ms: float
    """Median milliseconds."""
    peer_ms: float
    ratio: float
    """How many times as long the peer took: the median of the rounds' ratios."""
    ratio_min: float
    ratio_max: float
    rounds: int
    ours_gflops: float | None = None
    """Useful GFLOP/s: operations on real tokens (`forward_flops`) over the time."""
    peer_gflops: float | None = None
    share: float | None = None
    """`ours_gflops` over the best matrix product of this run in the same precision."""
    ours_error: float | None = None
    """Largest difference from upstream's float32 eager states at attended positions; for training
    the difference of the losses."""
    peer_error: float | None = None
    ours_mib: float | None = None
    """Rise of the resident memory while it runs; on CUDA of torch's allocated memory; for training
    the peak of tensors beyond weights and gradients."""
    peer_mib: float | None = None
    ours_rms: float | None = None
    """Root of the mean squared difference from the same states."""
    peer_rms: float | None = None
    ours_spearman: float | None = None
    """Of cosines with people's scores on STS 2014, times 100 (the case `sts`)."""
    peer_spearman: float | None = None
    ours_kept: float | None = None
    """`ours_spearman` over that of upstream's float32."""
    peer_kept: float | None = None
    notes: dict[str, float] = dataclasses.field(default_factory=dict)
    """Further figures, as the largest relative difference of gradients in training."""


@dataclasses.dataclass(frozen=True)
class Missing:
    """A peer, or one of ours, that could not run, and why."""

    peer: str
    dtype: str
    reason: str
    case: str = "all"


@dataclasses.dataclass(frozen=True)
class LinePoint:
    """One batch of `line`, one contestant."""

    contestant: str
    dtype: str
    tokens: int
    padded_tokens: int
    widths: int
    """How many times as wide as its longest row the batch is."""
    ms: float
    cost: float
    """The median of the rounds' ratios to the narrowest batch of the same tokens."""


@dataclasses.dataclass
class Results:
    """Everything that a run found."""

    environment: dict[str, Any]
    settings: dict[str, Any]
    rows: list[Row] = dataclasses.field(default_factory=list)
    missing: list[Missing] = dataclasses.field(default_factory=list)
    line: list[LinePoint] = dataclasses.field(default_factory=list)
    products: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    """GFLOP/s of matrix products: by precision, by kernel."""
    kernels: dict[str, str | None] = dataclasses.field(default_factory=dict)
    """What computed the prepared model, by precision; None where nothing could be prepared."""

    def best(self, dtype: str) -> float | None:
        """The best matrix product of a precision in GFLOP/s."""
        return max(self.products.get(dtype, {}).values(), default=None)

    def add_products(self, dtype: str, rates: dict[str, float]) -> None:
        """Keep the best rate of each kernel: the machine's speed varies during a run."""
        known = self.products.setdefault(dtype, {})
        for kernel, rate in rates.items():
            known[kernel] = max(rate, known.get(kernel, 0.0))

    def fill_shares(self) -> None:
        """Set each row's share of the best product, when all products are measured."""
        for row in self.rows:
            best = self.best(row.ours_dtype)
            if best and row.ours_gflops is not None:
                row.share = row.ours_gflops / best

    def line_fits(self) -> list[dict[str, Any]]:
        """By contestant: how straight its line is, and what padding costs it.

        Returns:
            `contestant`, `dtype`, `us_per_token`, `fixed_ms`, `r_squared` (1: a straight line
            through every point, whatever its padding) and, of the widest batches beside the
            narrowest of the same tokens, the least and the greatest ratio of times:
            `padding_cost_min` and `padding_cost`.
        """
        fits = []
        for name, dtype in dict.fromkeys((p.contestant, p.dtype) for p in self.line):
            points = [p for p in self.line if (p.contestant, p.dtype) == (name, dtype)]
            slope, fixed, squared = straight_line(
                [p.tokens for p in points], [p.ms for p in points]
            )
            widest = max(p.widths for p in points)
            costs = [p.cost for p in points if p.widths == widest]
            fits.append(
                {
                    "contestant": name,
                    "dtype": dtype,
                    "us_per_token": 1000 * slope,
                    "fixed_ms": fixed,
                    "r_squared": squared,
                    "padding_cost_min": min(costs),
                    "padding_cost": max(costs),
                }
            )
        return fits

    def to_json(self) -> str:
        """One JSON object."""
        plain = dataclasses.asdict(self) | {"line_fits": self.line_fits()}
        return json.dumps(plain, indent=2, ensure_ascii=False)


def straight_line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """The line of least squares: slope, value at 0, and the share of variance it explains."""
    if len(set(x)) < 2:
        return 0.0, statistics.fmean(y), 1.0
    slope, fixed = statistics.linear_regression(x, y)
    return slope, fixed, statistics.correlation(x, y) ** 2 if len(set(y)) > 1 else 1.0


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
