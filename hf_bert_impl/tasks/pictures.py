"""Pictures of results: bars, confusion matrices, predictions against gold values.

The ending of each `file` names its format (png, svg, pdf).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_bert_impl.figures import COLOURS, new_figure, plain, save

#: Maximum number of labels of a confusion matrix with counts in its cells.
COUNTED_LABELS = 20


def draw_bars(file: str | Path, title: str, bars: Mapping[str, float], unit: str) -> None:
    """Draws one horizontal bar per score, the first on top; `unit` labels the axis."""
    figure, ((axis,),) = new_figure(7, 1.1 + 0.38 * len(bars), title)
    drawn = axis.barh(list(bars), list(bars.values()), color=COLOURS[0], height=0.7)
    axis.bar_label(drawn, fmt="{:.4g}", padding=4, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel(unit)
    axis.margins(x=0.12)
    plain(axis, lines=False)
    save(figure, file)


def draw_confusion_matrix(
    file: str | Path, title: str, gold: Any, predicted: Any, labels: Sequence[str]
) -> None:
    """Draws the counts of each gold class (rows) by predicted class, shaded by their share.

    Args:
        file: The picture.
        title: Above it.
        gold: (N,) class numbers.
        predicted: (N,) class numbers.
        labels: The names of the classes.
    """
    size = len(labels)
    counts = np.zeros((size, size), np.int64)
    np.add.at(counts, (np.asarray(gold), np.asarray(predicted)), 1)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    width, height = min(3 + 0.55 * size, 14), min(2.6 + 0.5 * size, 13)
    figure, ((axis,),) = new_figure(width, height, title)
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axis.set_xticks(range(size), labels, rotation=45, ha="right")
    axis.set_yticks(range(size), labels)
    axis.set_xlabel("predicted")
    axis.set_ylabel("gold")
    for row in range(size if size <= COUNTED_LABELS else 0):
        for column in range(size):
            colour = "white" if shares[row, column] > 0.5 else "black"
            style = {"ha": "center", "va": "center", "color": colour, "fontsize": 8}
            axis.text(column, row, f"{counts[row, column]:,}", **style)
    save(figure, file)


def draw_scatter(file: str | Path, title: str, gold: Any, predicted: Any) -> None:
    """Draws predicted numbers (N,) against gold ones (N,)."""
    figure, ((axis,),) = new_figure(5, 4.6, title)
    axis.scatter(gold, predicted, s=8, alpha=0.5, color=COLOURS[0], edgecolors="none")
    ends = [min(gold), max(gold)]
    axis.plot(ends, ends, color="#999999", linewidth=1, linestyle="--")
    axis.set_xlabel("gold")
    axis.set_ylabel("predicted")
    plain(axis, lines=False)
    save(figure, file)
