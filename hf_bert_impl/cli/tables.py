"""What several commands print: tables of figures, predictions and similarities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

BAR_WIDTH = 24


def console() -> Console:
    """A console on standard output as it is now."""
    from rich.console import Console

    return Console()


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str | None = None
) -> None:
    """Print a line that says what was measured, a table below it, and a note.

    Args:
        title: What was measured; empty for no line.
        columns: Heads of the columns after the first; without any text they are not shown.
        rows: The name of each figure and its values.
        note: A line below.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_header=any(columns))
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    # A title of the table itself would be broken at the table's width.
    out = console()
    if title:
        out.print(Text(title, style="italic"))
    out.print(table)
    if note is not None:
        out.print(Text(note, style="dim"))


def prediction_table(title: str, predictions: Sequence[tuple[str, float]]) -> Table:
    """Tokens with their probabilities, best first.

    Args:
        title: What was asked.
        predictions: Token and probability.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="italic"
    )
    table.add_column("", justify="right", style="dim")
    table.add_column("token", style="bold")
    table.add_column("probability", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for rank, (token, probability) in enumerate(predictions, start=1):
        bar = "█" * round(probability * BAR_WIDTH)
        # Small ones keep their digits: 5.8323e-05 says more than 0.0001.
        figure = f"{probability:.4f}" if probability >= 1e-4 else f"{probability:.4e}"
        table.add_row(str(rank), Text(token), figure, Text(bar, style="cyan"))
    return table


def similarity_table(
    title: str, labels: Sequence[str], similarities: Sequence[Sequence[float]]
) -> Table:
    """A square of cosines, coloured from cold to warm.

    Args:
        title: The table's title.
        labels: N texts.
        similarities: N rows of N cosines.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=title,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="italic",
        padding=(0, 1, 0, 0),
    )
    table.add_column("")
    for index in range(len(labels)):
        table.add_column(str(index + 1), justify="right", no_wrap=True)
    for index, (label, row) in enumerate(zip(labels, similarities, strict=True)):
        cells = [Text(f"{value:.2f}", style=_colour(value)) for value in row]
        table.add_row(Text(f"{index + 1} {label}"), *cells)
    return table


def _colour(cosine: float) -> str:
    if cosine > 0.995:
        return "dim"
    if cosine > 0.5:
        return "bold green"
    return "yellow" if cosine > 0.25 else "blue"
