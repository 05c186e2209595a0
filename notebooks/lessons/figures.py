"""The style of all pictures, and the function that shows them.

Pictures have a white background and readable letters at the width of a page.
"""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from cycler import cycler
from IPython.display import display
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from PIL import Image

from hf_bert_impl.extras import install_remedy
from hf_bert_impl.figures import COLOURS, DOTS_PER_INCH

__all__ = ["COLOURS", "heat_map", "show", "use_style"]

#: Width of a page in inches.
PAGE = 9.0


def use_style() -> None:
    """Sets matplotlib's defaults. The import of this module calls it."""
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
    """Draws a matrix, first row on top, with a colour bar.

    Args:
        axis: The axis to draw on.
        values: (rows, columns).
        x: Label of the columns.
        y: Label of the rows.
        bar: Label of the colour bar with its unit; empty for no bar.
        columns: Ticks of the columns, such as tokens.
        rows: Ticks of the rows.
        limits: Values of the first and the last colour. By default minimum and maximum.
        colours: A colour map of matplotlib.
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


def show(figure: Figure, title: str) -> None:
    """Shows a picture as a small PNG, which a full run stores in the notebook.

    Args:
        figure: The picture.
        title: Its description, which the site uses as alternative text.

    Raises:
        ValueError: The picture has no title, an axis has no label, a character has no font, or a
            title does not fit.
    """
    _check_labels(figure, title)
    png = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Glyph .* missing from font")
        try:
            figure.draw_without_rendering()
            _check_titles(figure, title)
            figure.savefig(png, dpi=DOTS_PER_INCH)
        except UserWarning as missing:
            raise ValueError(
                f"{title}: {missing}. Install the font: {install_remedy('notebooks')}."
            ) from missing
    plt.close(figure)
    small = io.BytesIO()
    image = Image.open(png).convert("RGB").quantize(method=Image.Quantize.FASTOCTREE)
    image.save(small, "png", optimize=True)
    text = base64.b64encode(small.getvalue()).decode()
    display({"image/png": text, "text/plain": title}, raw=True)


def _check_labels(figure: Figure, name: str) -> None:
    axes = [axis for axis in figure.axes if axis.axison and axis.get_visible()]
    if not (figure.get_suptitle() or any(axis.get_title() for axis in axes)):
        raise ValueError(f"{name}: the picture has no title.")
    shared = figure.get_supxlabel(), figure.get_supylabel()
    for axis in axes:
        if axis.get_label() == "<colorbar>":
            is_labelled = bool(axis.get_ylabel() or axis.get_xlabel())
        else:
            x, y = axis.get_xlabel() or shared[0], axis.get_ylabel() or shared[1]
            is_labelled = bool(x and y)
        if not is_labelled:
            raise ValueError(f"{name}: axis {figure.axes.index(axis)} has no label.")


def _check_titles(figure: Figure, name: str) -> None:
    """Checks the layout, so the figure must have been drawn."""
    titles = [*figure.texts, *(axis.title for axis in figure.axes if axis.get_visible())]
    boxes = [(title.get_text(), title.get_window_extent()) for title in titles if title.get_text()]
    for text, box in boxes:
        if box.x0 < figure.bbox.x0 or box.x1 > figure.bbox.x1:
            raise ValueError(f"{name}: {text!r} is cut off. Shorten it or break the line.")
    for (one, box), (other, next_box) in combinations(boxes, 2):
        if box.overlaps(next_box):
            raise ValueError(f"{name}: {one!r} and {other!r} overlap.")


def _chinese_font() -> Path | None:
    """Noto Sans SC from the extra `notebooks`: matplotlib has no Chinese font."""
    try:
        import pylopdf_fonts_zh_cn
    except ImportError:
        return None
    return Path(pylopdf_fonts_zh_cn.sans_path())


use_style()
