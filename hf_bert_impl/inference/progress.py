"""A progress bar on standard error that counts texts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@contextlib.contextmanager
def text_progress(
    show: bool, total: int | None = None, *, start: int = 0
) -> Iterator[Callable[..., None]]:
    """Shows how many texts are done and how many a second; only where a person can see it.

    Args:
        show: Whether to show anything.
        total: What is to be done, in the unit of `done`; None where nobody knows.
        start: Texts that were done before.

    Yields:
        A function `advance(texts, done=None, tokens=0)`: so many more texts, with which so much of
        `total` is done (the number of texts, unless given), and so many more tokens.
    """
    console = _terminal() if show else None
    if console is None:
        yield lambda texts, done=None, tokens=0: None
        return
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    begin, count, computed = time.perf_counter(), start, 0
    with Progress(
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task("", total=total, note="")

        def advance(texts: int, done: int | None = None, tokens: int = 0) -> None:
            nonlocal count, computed
            count, computed = count + texts, computed + tokens
            seconds = max(time.perf_counter() - begin, 1e-9)
            note = f"{count:,} texts, {(count - start) / seconds:,.0f} a second"
            if computed:
                note += f" ({computed / seconds:,.0f} tokens)"
            progress.update(task, completed=count if done is None else done, note=note)

        yield advance


def _terminal() -> Console | None:
    """Standard error, where a person can see it."""
    from rich.console import Console

    console = Console(stderr=True)
    return console if console.is_terminal else None
