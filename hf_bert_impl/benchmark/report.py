"""The tables that a person reads: a table a case, what was missing, and what the figures mean."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.text import Text

from hf_bert_impl.benchmark.cases import CASES
from hf_bert_impl.benchmark.results import RUNTIMES, Results, Row
from hf_bert_impl.tables import print_table

if TYPE_CHECKING:
    from rich.console import Console

SHORT_DTYPES = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "int8": "int8",
    "float16-weights": "fp16 weights",
}
LEGEND = (
    "times as fast: median of the rounds' ratios [least–greatest]; each round everyone in turns, "
    "in a process of its own.\n"
    "error: largest difference from transformers in float32 eager at attended positions (encode: "
    "of vectors, from sentence-transformers in float32). ours/peer throughout."
)


def render(results: Results, console: Console) -> None:
    """Print everything.

    Args:
        results: What was measured.
        console: Where to.
    """
    say = functools.partial(console.print, highlight=False, markup=False)
    where = results.environment
    versions = ", ".join(f"{name} {where[name]}" for name in RUNTIMES if where.get(name))
    say(
        f"{results.settings.get('model', '')}; {where['cpu']}, {where['device']}, "
        f"{where['threads']} thread(s); {versions}"
    )
    if not where.get("stopped"):
        say("contestants wait for their turn; this system cannot stop them")
    for dtype, kernels in results.kernels.items():
        say(f"kernels, {dtype}: {kernels or 'nothing is prepared'}")
    for name in CASES:
        if rows := [row for row in results.rows if row.case == name]:
            _print_case(console, name, rows)
    for missing in results.missing:
        case = "" if missing.case == "all" else f", {missing.case}"
        say(
            f"{missing.peer} ({SHORT_DTYPES.get(missing.dtype, missing.dtype)}{case}): "
            f"not available: {missing.reason}",
            style="yellow",
        )
    if results.rows:
        say(LEGEND, style="dim")


def _print_case(console: Console, name: str, rows: list[Row]) -> None:
    """Ours beside each peer on one case."""
    columns: dict[str, Callable[[Row], str]] = {
        "ours": lambda row: f"{row.ours} {SHORT_DTYPES[row.ours_dtype]}",
        "peer": lambda row: f"{row.peer} {SHORT_DTYPES[row.peer_dtype]}",
        "ms": lambda row: f"{row.ours_ms:.1f} / {row.peer_ms:.1f}",
        "times as fast": lambda row: f"{row.ratio:.2f} [{row.ratio_min:.2f}–{row.ratio_max:.2f}]",
        "error": lambda row: f"{row.ours_error:.0e} / {row.peer_error:.0e}".replace("e-0", "e-"),
    }
    cells = {head: [Text(cell(row)) for row in rows] for head, cell in columns.items()}
    for cell, row in zip(cells["times as fast"], rows, strict=True):
        cell.stylize("bold green" if row.ratio >= 1 else "bold red")
    first = rows[0]
    unit = "rows" if CASES[name].rows else "texts"
    size = f"{first.rows} {unit}, {first.tokens} tokens, {first.padding:.0%} padding"
    title = f"{name}: {CASES[name].what}\nmeasured: {size}"
    print_table(console, title, [*cells], zip(*cells.values(), strict=True), words=(0, 1))
