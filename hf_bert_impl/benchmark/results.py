"""The results of a run: rows, missing peers, and the environment."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import platform
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from rich.text import Text

import hf_bert_impl
from hf_bert_impl.benchmark.cases import CASES
from hf_bert_impl.benchmark.contest import CAN_STOP
from hf_bert_impl.measuring.timing import cpu_name, instruction_set
from hf_bert_impl.report import Report
from hf_bert_impl.tables import print_table

if TYPE_CHECKING:
    from rich.console import Console

RUNTIMES = ("torch", "transformers", "onnxruntime", "openvino", "ctranslate2")
PACKAGES = (*RUNTIMES, "sentence-transformers", "llama-cpp-python")


SHORT_DTYPES = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "int8": "int8",
}
LEGEND = (
    "speed-up: the median over paired rounds, with minimum and maximum; contestants take turns in "
    "their own processes.\n"
    "error: the maximum difference from transformers in float32 eager at attended positions "
    "(encode: of vectors, from sentence-transformers in float32). Columns show ours / peer."
)


@dataclasses.dataclass
class Row:
    """One of ours compared with one peer on one case.

    Times are medians in milliseconds (sums over all parts for texts). Ratios are peer / ours.
    Errors are maximum differences from transformers' float32 eager states at attended positions, or
    from the float32 vectors of sentence-transformers.
    """

    case: str
    rows: int
    tokens: int
    padding: float
    ours: str
    ours_dtype: str
    peer: str
    peer_dtype: str
    ours_ms: float
    peer_ms: float
    ratio: float
    ratio_min: float
    ratio_max: float
    rounds: int
    ours_error: float
    peer_error: float


@dataclasses.dataclass(frozen=True)
class Missing:
    """A contestant that could not run, and why."""

    peer: str
    dtype: str
    reason: str
    case: str = "all"


@dataclasses.dataclass
class Results(Report[Row]):
    """All results of a run."""

    environment: dict[str, Any] = dataclasses.field(default_factory=dict)
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    missing: list[Missing] = dataclasses.field(default_factory=list)
    #: Of the prepared model by precision; None if it could not be prepared.
    kernels: dict[str, str | None] = dataclasses.field(default_factory=dict)

    def render(self, console: Console) -> None:
        """Prints a table per case, missing contestants, and a legend."""
        say = functools.partial(console.print, highlight=False, markup=False)
        where = self.environment
        versions = ", ".join(f"{name} {where[name]}" for name in RUNTIMES if where.get(name))
        say(
            f"{self.settings.get('model', '')}; {where['cpu']}, {where['device']}, "
            f"{where['threads']} thread(s); {versions}"
        )
        if not where.get("stopped"):
            say("contestants wait for their turn; this system cannot stop them")
        for dtype, kernels in self.kernels.items():
            say(f"kernels, {dtype}: {kernels or 'none'}")
        for name in CASES:
            if rows := [row for row in self.rows if row.case == name]:
                _print_case(console, name, rows)
        for missing in self.missing:
            case = "" if missing.case == "all" else f", {missing.case}"
            say(
                f"{missing.peer} ({SHORT_DTYPES.get(missing.dtype, missing.dtype)}{case}): "
                f"not available: {missing.reason}",
                style="yellow",
            )
        if self.rows:
            say(LEGEND, style="dim")


def _print_case(console: Console, name: str, rows: list[Row]) -> None:
    columns: dict[str, Callable[[Row], str]] = {
        "ours": lambda row: f"{row.ours} {SHORT_DTYPES[row.ours_dtype]}",
        "peer": lambda row: f"{row.peer} {SHORT_DTYPES[row.peer_dtype]}",
        "ms": lambda row: f"{row.ours_ms:.1f} / {row.peer_ms:.1f}",
        "speed-up": lambda row: f"{row.ratio:.2f} [{row.ratio_min:.2f}–{row.ratio_max:.2f}]",
        "error": lambda row: f"{row.ours_error:.0e} / {row.peer_error:.0e}".replace("e-0", "e-"),
    }
    cells = {head: [Text(cell(row)) for row in rows] for head, cell in columns.items()}
    for cell, row in zip(cells["speed-up"], rows, strict=True):
        cell.stylize("bold green" if row.ratio >= 1 else "bold red")
    first = rows[0]
    unit = "rows" if CASES[name].rows else "texts"
    size = f"{first.rows} {unit}, {first.tokens} tokens, {first.padding:.0%} padding"
    title = f"{name}: {CASES[name].what}\nmeasured: {size}"
    print_table(console, title, [*cells], zip(*cells.values(), strict=True), words=(0, 1))


def environment(device: str, threads: int) -> dict[str, Any]:
    """Versions, processor, device and threads of this run."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "instruction_set": instruction_set(),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else "cpu",
        "threads": threads,
        # Whether contestants are stopped between their turns.
        "stopped": CAN_STOP,
        # Not from metadata: those of an editable install may be older than the code.
        "hf_bert_impl": hf_bert_impl.__version__,
    }
    for package in PACKAGES:
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            facts[package] = None
    return facts
