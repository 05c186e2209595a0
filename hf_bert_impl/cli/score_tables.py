"""Tables of scores, as `hf-bert finetune` and `hf-bert evaluate` print them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hf_bert_impl.cli.tables import console


def print_scores(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str | None = None
) -> None:
    """Print a line that says what was measured, a table below it, and a note.

    Args:
        title: What was measured.
        columns: Heads of the columns after the first.
        rows: The name of each score and its values.
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
    # Not as the table's own title, which would be broken at its width.
    out = console()
    out.print(Text(title, style="italic"))
    out.print(table)
    if note is not None:
        out.print(Text(note, style="dim"))
