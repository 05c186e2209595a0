"""One style for all pictures, and the one place where they are saved.

Pictures stand on white, whatever the viewer's colours are, with letters that can be read at the
width of a page. `save` refuses a picture without a title or without the names of its axes, one
with a character that no font has, and one whose titles are cut off or run into each other.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from hf_bert_impl.extras import install_remedy
from hf_bert_impl.figures import COLOURS, DOTS_PER_INCH

from . import data, settings

__all__ = ["COLOURS", "FOLDER", "heat_map", "save", "use_style"]

#: Inches of a picture that fills the width of a page.
PAGE = 9.0


def folder() -> Path:
    """The folder for pictures: the committed one for full runs on real data, else another."""
    if settings.SMALL or not os.environ.get(data.VARIABLE):
        return Path(tempfile.gettempdir()) / "hf_bert_impl_figures"
    return Path(__file__).parents[1] / "figures"


#: Where `save` writes.
FOLDER: Path = folder()


def use_style() -> None:
    """Sets matplotlib's defaults; importing this module does it."""
    fonts = ["DejaVu Sans"]
    chinese = _chinese_font()
    if chinese is not None:
        font_manager.fontManager.addfont(str(chinese))
        fonts.append(font_manager.FontProperties(fname=str(chinese)).get_name())
    mpl.rcParams.update(
        {
            "axes.axisbelow": True,
            "axes.grid": True,
            "axes.prop_cycle": cycler(color=COLOURS),
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlesize": 11,
            "figure.constrained_layout.use": True,
            "figure.dpi": 100,
            "figure.facecolor": "white",
            "figure.titlesize": 13,
            "font.family": fonts,
            "font.size": 10,
            "grid.color": "#dddddd",
            "grid.linewidth": 0.6,
            "image.cmap": "viridis",
            "legend.frameon": False,
            "savefig.facecolor": "white",
            "savefig.transparent": False,
        }
    )


def heat_map(
    axis: Axes,
    values: ArrayLike,
    *,
    x: str,
    y: str,
    bar: str,
    columns: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    limits: tuple[float, float] | None = None,
    colours: str = "viridis",
) -> None:
    """Draws a matrix, its first row on top, with the meaning of its colours beside it.

    Args:
        axis: Where to.
        values: (rows, columns), anything that NumPy takes.
        x: What the columns are.
        y: What the rows are.
        bar: What the colours are, with the unit; empty for no bar.
        columns: Names under the columns, such as tokens.
        rows: Names beside the rows.
        limits: The values of the first and the last colour; by default the least and the largest.
        colours: The name of a colour map of matplotlib.
    """
    low, high = limits or (None, None)
    image = axis.imshow(
        np.asarray(values),
        aspect="auto",
        cmap=colours,
        vmin=low,
        vmax=high,
        interpolation="nearest",
    )
    axis.grid(False)
    axis.set(xlabel=x, ylabel=y)
    if columns is not None:
        slanted = max(map(len, columns), default=0) > 2
        axis.set_xticks(range(len(columns)), columns, rotation=90 if slanted else 0)
    if rows is not None:
        axis.set_yticks(range(len(rows)), rows)
    if bar:
        axis.figure.colorbar(image, ax=axis, label=bar)


def save(figure: Figure, name: str) -> None:
    """Saves a picture as `name.png`.

    A full run on real data writes into `notebooks/figures`, which is in git; any other run into a
    temporary folder, so that it changes no file of the repository.

    Args:
        figure: The picture.
        name: Its name without the ending, such as `01_alignment`.

    Raises:
        ValueError: The picture has no title, an axis has no name, a character has no font, or a
            title does not fit.
    """
    _check_names(figure, name)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Glyph .* missing from font")
        try:
            figure.draw_without_rendering()
            _check_titles(figure, name)
            FOLDER.mkdir(parents=True, exist_ok=True)
            file = FOLDER / f"{name}.png"
            figure.savefig(file, dpi=DOTS_PER_INCH, metadata={"Software": None})
        except UserWarning as missing:
            raise ValueError(
                f"the picture {name} would show an empty box: {missing}; install the font, "
                f"{install_remedy('notebooks')}"
            ) from missing


def _check_names(figure: Figure, name: str) -> None:
    axes = [axis for axis in figure.axes if axis.axison and axis.get_visible()]
    if not (figure.get_suptitle() or any(axis.get_title() for axis in axes)):
        raise ValueError(f"the picture {name} has no title")
    shared = figure.get_supxlabel(), figure.get_supylabel()
    for axis in axes:
        if axis.get_label() == "<colorbar>":
            named = bool(axis.get_ylabel() or axis.get_xlabel())
        else:
            named = bool(axis.get_xlabel() or shared[0]) and bool(axis.get_ylabel() or shared[1])
        if not named:
            place = figure.axes.index(axis)
            raise ValueError(f"the picture {name} has an axis without a name (number {place})")


def _check_titles(figure: Figure, name: str) -> None:
    """Called when the picture is laid out."""
    titles = [*figure.texts, *(axis.title for axis in figure.axes if axis.get_visible())]
    boxes = [(title.get_text(), title.get_window_extent()) for title in titles if title.get_text()]
    for text, box in boxes:
        if box.x0 < figure.bbox.x0 or box.x1 > figure.bbox.x1:
            raise ValueError(f"the picture {name} cuts off {text!r}; make it shorter or break it")
    for (one, box), (other, beside) in combinations(boxes, 2):
        if box.overlaps(beside):
            raise ValueError(f"in the picture {name} {one!r} and {other!r} run into each other")


def _chinese_font() -> Path | None:
    """Noto Sans SC from the extra `notebooks`; matplotlib's own fonts hold no Chinese."""
    try:
        import pylopdf_fonts_zh_cn
    except ImportError:
        return None
    return Path(pylopdf_fonts_zh_cn.sans_path())


use_style()
