"""How commands print reports."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from hf_bert_impl.files.json_files import to_json
from hf_bert_impl.report import CheckFailed, Report
from hf_bert_impl.tables import console, print_table

if TYPE_CHECKING:
    from hf_bert_impl.measuring.beside import Timed

#: On an idle machine the speed-ups of two rounds differ by less than this factor.
BUSY_SPREAD = 1.5


def show(report: Report[Any], as_json: bool, **options: Any) -> None:
    """Prints a report as one JSON object, or as tables.

    Args:
        report: The report.
        as_json: Whether as JSON.
        **options: Options of the report's `render`.
    """
    if as_json:
        typer.echo(to_json(report))
    else:
        report.render(console(), **options)


def show_table(
    as_json: bool,
    report: Any,
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    note: str = "",
    words: Collection[int] = (0,),
) -> None:
    """Prints a report as one JSON object, or as a table; further arguments as in `print_table`."""
    if as_json:
        typer.echo(to_json(report))
    else:
        print_table(console(), title, columns, rows, note, words=words)


def show_speed(rows: Sequence[Timed], title: str = "") -> None:
    """Prints the times of this package and of transformers."""
    cells = [
        (
            f"{row.rows} sequence{'s' * (row.rows > 1)}, {row.tokens} tokens, "
            f"{row.padding:.0%} padding",
            f"{row.other_ms:.1f} ms",
            f"{row.model_ms:.1f} ms",
            f"{row.ratio:.2f} ({row.least:.2f}–{row.greatest:.2f})",
        )
        for row in rows
    ]
    worst = max(rows, key=lambda row: row.greatest / row.least)
    note = ""
    if worst.greatest > BUSY_SPREAD * worst.least:
        note = (
            f"The machine is busy: the speed-up of a round was {worst.least:.2f} to "
            f"{worst.greatest:.2f}. Close other programs and run the command again."
        )
    columns = ("", "transformers", "hf_bert_impl", "speed-up")
    print_table(console(), title, columns, cells, note)


@contextlib.contextmanager
def failure_shown(as_json: bool = False) -> Iterator[None]:
    """Prints the report of a check that failed, and ends the command with status 1."""
    try:
        yield
    except CheckFailed as failed:
        show(failed.report, as_json)
        raise typer.Exit(1) from failed
