"""Tables on a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

#: Width of a table in a file or pipe, where lines must not be broken (for grep).
UNBROKEN = 300
#: Minimum width of a column of words in a narrow window.
NARROWEST = 8


def console() -> Console:
    """A console on the current standard output."""
    out = Console()
    if not out.is_terminal:
        out.width = UNBROKEN
    return out


def print_table(
    out: Console,
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    note: str = "",
    *,
    words: Collection[int] = (0,),
) -> None:
    """Prints a title, a table and a note.

    Args:
        out: The console.
        title: Empty for none.
        columns: The heads; hidden if all are empty.
        rows: One cell per column. Strings are not markup.
        note: Empty for none.
        words: Indices of the columns of words, aligned left. The others are numbers, aligned right
            and broken only at spaces.
    """
    cells = [[Text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
    table = Table(box=box.SIMPLE_HEAD, show_header=any(columns), padding=(0, 1, 0, 0))
    for index, head in enumerate(columns):
        parts = " ".join([head, *(row[index].plain for row in cells)]).split()
        longest = max(map(len, parts), default=0)
        if index in words:
            table.add_column(Text(head), overflow="fold", min_width=min(longest, NARROWEST))
        else:
            table.add_column(Text(head), justify="right", min_width=longest)
    for row in cells:
        table.add_row(*row)
    # The table's own title or caption would be broken at its width.
    if title:
        out.print(Text(title, "italic"))
    out.print(table, crop=False)  # keeps the last columns in a narrow window
    if note:
        out.print(Text(note, "dim"))
