"""The tables that a person reads: a table a case, what was missing, and what the figures mean."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rich.text import Text

from hf_bert_impl.benchmark.cases import CASES, TEXTS
from hf_bert_impl.benchmark.results import Results, Row
from hf_bert_impl.tables import print_table

if TYPE_CHECKING:
    from rich.console import Console

SHORT_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "int8": "int8"}
LEGEND = (
    "times as fast: median of the rounds' ratios [least–greatest]; each round everyone in turns, "
    "in a process of its own.\n"
    "error: largest difference from transformers in float32 eager at attended positions (training: "
    "of the losses; texts: of vectors or scores, from sentence-transformers in float32); rms: root "
    "of the mean squared one.\n"
    "Spearman: of cosines with people's scores, times 100; kept: of transformers' in float32.\n"
    "GFLOP/s: operations on real tokens, attention included; share: of the best matrix product of "
    "this run in the same precision.\n"
    "MiB: rise of memory while it runs (training: peak beyond weights and gradients). "
    "ours/peer throughout."
)


def render(results: Results, console: Console) -> None:
    """Print everything.

    Args:
        results: What was measured.
        console: Where to.
    """
    say = functools.partial(console.print, highlight=False, markup=False)
    where = results.environment
    versions = ", ".join(
        f"{name} {where[name]}"
        for name in ("torch", "transformers", "onnxruntime", "openvino", "nncf", "ctranslate2")
        if where.get(name)
    )
    say(
        f"{results.settings.get('model', '')}; {where['cpu']}, {where['device']}, "
        f"{where['threads']} thread(s); {versions}"
    )
    if not where.get("stopped"):
        say("contestants wait for their turn; this system cannot stop them")
    for dtype, rates in results.products.items():
        best = ", ".join(f"{kernel} {rate:.0f}" for kernel, rate in rates.items()) or "none"
        say(f"best matrix product, {dtype}: {best} GFLOP/s")
    for dtype, kernels in results.kernels.items():
        say(f"kernels, {dtype}: {kernels or 'nothing is prepared'}")
    for name in CASES:
        rows = [row for row in results.rows if row.case == name]
        if rows:
            _print_case(console, name, rows, where.get("instruction_set", ""))
    if results.line:
        _print_line(console, results)
    for missing in results.missing:
        case = "" if missing.case == "all" else f", {missing.case}"
        say(
            f"{missing.peer} ({SHORT_DTYPES.get(missing.dtype, missing.dtype)}{case}): "
            f"not available: {missing.reason}",
            style="yellow",
        )
    if results.rows:
        say(LEGEND, style="dim")


def _print_case(console: Console, name: str, rows: list[Row], level: str) -> None:
    """Ours beside each peer on one case, measured with an instruction set."""
    unit = "texts" if name in TEXTS else "rows"
    batches = dict.fromkeys((row.rows, row.tokens, row.padding) for row in rows)
    sizes = "; ".join(
        f"{count} {unit}, {tokens} tokens, {padding:.0%} padding"
        for count, tokens, padding in batches
    )
    columns: dict[str, Callable[[Row], str]] = {
        "rows": lambda row: str(row.rows),
        "ours": lambda row: f"{row.ours} {SHORT_DTYPES[row.ours_dtype]}",
        "peer": lambda row: f"{row.peer} {SHORT_DTYPES[row.peer_dtype]}",
        "ms": lambda row: _both(_milliseconds, row.ours_ms, row.peer_ms),
        "times as fast": lambda row: f"{row.ratio:.2f} [{row.ratio_min:.2f}–{row.ratio_max:.2f}]",
        "error": lambda row: _both(_exponent, row.ours_error, row.peer_error),
        "rms": lambda row: _both(_exponent, row.ours_rms, row.peer_rms),
        "Spearman": lambda row: _both("{:.2f}".format, row.ours_spearman, row.peer_spearman),
        "kept": lambda row: _both("{:.1%}".format, row.ours_kept, row.peer_kept),
        "GFLOP/s": lambda row: _both("{:.0f}".format, row.ours_gflops, row.peer_gflops),
        "share": lambda row: "" if row.share is None else f"{row.share:.0%}",
        "MiB": lambda row: _both("{:.0f}".format, row.ours_mib, row.peer_mib),
    }
    if len(batches) == 1:
        del columns["rows"]  # the title says it
    if {row.ours_dtype for row in rows} == {"float32"}:
        del columns["rms"]  # the largest error says enough
    cells = {key: [Text(cell(row)) for row in rows] for key, cell in columns.items()}
    # A column without any figure is left out.
    cells = {key: column for key, column in cells.items() if any(column)}
    for cell, row in zip(cells["times as fast"], rows, strict=True):
        style = "bold green" if row.ratio >= 1 else "bold red"
        cell.stylize("dim" if row.peer == "self" else style)
    note = "\n".join(
        f"{row.peer}, {row.rows} rows: loss {row.notes['ours_loss']:.6f} / "
        f"{row.notes['peer_loss']:.6f}, gradients differ by "
        f"{row.notes['gradient_error']:.0e} of the largest, "
        f"memory {row.notes['memory_ratio']:.2f} of the peer's"
        for row in rows
        if "ours_loss" in row.notes
    )
    note += "\n".join(
        f"{row.ours} {SHORT_DTYPES[row.ours_dtype]} beside {row.peer} "
        f"{SHORT_DTYPES[row.peer_dtype]}: its whole process held "
        f"{_both('{:.0f}'.format, row.notes['ours_process_mib'], row.notes['peer_process_mib'])} "
        "MiB at most"
        for row in rows
        if {"ours_process_mib", "peer_process_mib"} <= {*row.notes}
    )
    _print(console, f"{name}: {CASES[name].what}\nmeasured: {sizes}; {level}", cells, note)


def _print_line(console: Console, results: Results) -> None:
    """How straight the cost against real tokens is."""
    fits = results.line_fits()
    cells = {
        "": [Text(f"{fit['contestant']} {SHORT_DTYPES[fit['dtype']]}") for fit in fits],
        "µs a token": [Text(f"{fit['us_per_token']:.1f}") for fit in fits],
        "fixed ms": [Text(f"{fit['fixed_ms']:.1f}") for fit in fits],
        "R² of a straight line": [Text(f"{fit['r_squared']:.4f}") for fit in fits],
        "cost of padding": [
            Text(f"{fit['padding_cost_min']:.2f}–{fit['padding_cost']:.2f} times") for fit in fits
        ],
    }
    _print(console, f"line: {CASES['line'].what}", cells)


def _print(console: Console, title: str, cells: Mapping[str, list[Text]], note: str = "") -> None:
    """Print columns by their heads."""
    words = [index for index, head in enumerate(cells) if head in ("", "ours", "peer")]
    print_table(console, title, [*cells], zip(*cells.values(), strict=True), note, words=words)


def _milliseconds(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _exponent(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-").replace("0e+00", "0")


def _both(form: Callable[[float], str], ours: float | None, peer: float | None) -> str:
    """Ours / the peer's, without what was not measured."""
    if ours is None and peer is None:
        return ""
    return " / ".join("–" if value is None else form(value) for value in (ours, peer))
