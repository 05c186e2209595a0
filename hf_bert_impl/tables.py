"""Tables on a terminal, the same wherever the package prints one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

#: Columns of a file or a pipe: lines stay whole there, so that grep finds what is in them.
UNBROKEN = 300
#: Letters that a column of words keeps in a narrow window.
NARROWEST = 8


def console() -> Console:
    """A console on standard output as it is now."""
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
    """Print a line that says what was measured, a table below it, and a note.

    Args:
        out: Where to.
        title: What was measured; empty for no line.
        columns: Their heads; without any text they are not shown.
        rows: A cell for each column. A string is no markup.
        note: A line below; empty for none.
        words: Numbers of the columns that hold words: they stand on the left, and are broken
            anywhere in a narrow window. All others are figures on the right, broken at spaces only.
    """
    cells = [[Text(it) if isinstance(it, str) else it for it in row] for row in rows]
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
    # A title or a caption of the table itself would be broken at the table's width.
    if title:
        out.print(Text(title, "italic"))
    out.print(table, crop=False)  # wider than the window rather than without its last figures
    if note:
        out.print(Text(note, "dim"))
