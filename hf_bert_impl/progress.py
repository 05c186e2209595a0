"""Progress bars on standard error, shown only on a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from hf_bert_impl.extras import require


@contextlib.contextmanager
def progress_bar(show: bool, total: float | None = None) -> Iterator[Callable[..., None]]:
    """Shows a progress bar with a note and the remaining time.

    Args:
        show: Whether to show anything.
        total: The total; None if unknown.

    Yields:
        A function `update(done, note="", total=None)`, which may change the total.
    """
    from tqdm import tqdm

    form = "{l_bar}{bar}| {elapsed}<{remaining}{postfix}"
    # With None, only a terminal gets a bar.
    with tqdm(total=total, disable=None if show else True, leave=False, bar_format=form) as bar:

        def update(done: float, note: str = "", total: float | None = None) -> None:
            bar.total = bar.total if total is None else total
            bar.set_postfix_str(note, refresh=False)
            bar.update(done - bar.n)

        yield update


@contextlib.contextmanager
def text_progress(
    show: bool, total: int | None = None, *, start: int = 0
) -> Iterator[Callable[..., None]]:
    """Shows the number of texts done and their rate.

    Args:
        show: Whether to show anything.
        total: Number of texts; None if unknown.
        start: Number of texts done earlier.

    Yields:
        A function `advance(texts, tokens=0)`, with the numbers of further texts and tokens.
    """
    begin, count, computed = time.perf_counter(), start, 0
    with progress_bar(show, total) as update:

        def advance(texts: int, tokens: int = 0) -> None:
            nonlocal count, computed
            count, computed = count + texts, computed + tokens
            seconds = max(time.perf_counter() - begin, 1e-9)
            note = f"{count:,} texts, {(count - start) / seconds:,.0f} per second"
            if computed:
                note += f" ({computed / seconds:,.0f} tokens)"
            update(count, note)

        yield advance


@contextlib.contextmanager
def dataset_bars(show: bool) -> Iterator[None]:
    """Shows the progress bars of `datasets` on a terminal only."""
    datasets = require("datasets", "train", "reading data sets")
    was_shown = not datasets.are_progress_bars_disabled()
    if not (show and sys.stderr.isatty()):
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if was_shown:
            datasets.enable_progress_bars()
