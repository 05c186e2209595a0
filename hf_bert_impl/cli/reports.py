"""How commands print reports."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import typer

from hf_bert_impl.files.json_files import to_json
from hf_bert_impl.report import CheckFailed, Report
from hf_bert_impl.tables import console


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


@contextlib.contextmanager
def failure_shown(as_json: bool) -> Iterator[None]:
    """Prints the report of a check that failed, and ends the command with status 1."""
    try:
        yield
    except CheckFailed as failed:
        show(failed.report, as_json)
        raise typer.Exit(1) from failed
