"""Figures of matplotlib."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_bert_impl.errors import InputError
from hf_bert_impl.extras import require
from hf_bert_impl.files.atomic import atomic_file, check_place

#: Okabe and Ito's palette for all kinds of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#999999")
FORMATS = (".png", ".svg", ".pdf")
DOTS_PER_INCH = 130


def check_picture(file: str | os.PathLike[str]) -> None:
    """Checks early that a picture can be written.

    Raises:
        InputError: The format is unknown, the folder cannot be written, or matplotlib is missing.
    """
    path = Path(file)
    if path.suffix not in FORMATS:
        raise InputError(f"The picture is {path}. End its name in {', '.join(FORMATS)}.")
    check_place(path, "the picture")
    require("matplotlib", "train", "drawing")


def new_figure(
    width: float,
    height: float,
    title: str,
    rows: int = 1,
    columns: int = 1,
    *,
    font: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[Any, Any]:
    """A figure on a white background.

    Args:
        width: In inches.
        height: In inches.
        title: The title, without formulas.
        rows: Of axes.
        columns: Of axes.
        font: matplotlib's font properties of the title; 10 points by default.
        **options: Of matplotlib's `Figure.subplots`.

    Returns:
        The figure, and its axes as an array (rows, columns).

    Raises:
        InputError: matplotlib is missing.
    """
    require("matplotlib", "train", "drawing")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white", layout="constrained")
    figure.suptitle(title, parse_math=False, **{"fontsize": 10, **(font or {})})
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def plain(axis: Any, lines: bool = True) -> None:
    """Hides the top and right spines, and draws a faint grid for y."""
    axis.spines[["top", "right"]].set_visible(False)
    if lines:
        axis.grid(axis="y", color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)


def save(figure: Any, file: str | os.PathLike[str]) -> None:
    """Writes a figure atomically; the file's ending names the format."""
    with atomic_file(Path(file)) as fresh:
        figure.savefig(fresh, dpi=DOTS_PER_INCH)
