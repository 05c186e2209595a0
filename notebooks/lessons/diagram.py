"""Drawings of an architecture: boxes, arrows between them, and matrices with their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import ArrayLike

from .figures import COLOURS, PAGE

#: Pale versions of the first colours of `COLOURS`, for black letters.
FILLS = {
    "blue": "#d6e9f5",
    "orange": "#fbe3d0",
    "green": "#d3efe5",
    "yellow": "#fbeecb",
    "grey": "#eeeeee",
}


@dataclass(frozen=True)
class Box:
    """A rectangle; all lengths are inches of the drawing, from its lower left corner."""

    #: The centre.
    x: float
    y: float
    width: float
    height: float

    def edge(self, other: Box, *, sideways: bool = False) -> tuple[float, float]:
        """The middle of the side that faces another box, for an arrow.

        Args:
            other: The other box.
            sideways: True for the left or right side, even where the other is above or below.
        """
        if abs(other.y - self.y) >= (self.height + other.height) / 2 and not sideways:
            return self.x, self.y + np.sign(other.y - self.y) * self.height / 2
        return self.x + np.sign(other.x - self.x) * self.width / 2, self.y


class Diagram:
    """A drawing of boxes and arrows.

    Args:
        height: In inches.
        title: Above the drawing.
        width: In inches; a page by default.
    """

    def __init__(self, height: float, title: str, width: float = PAGE) -> None:
        #: For `figures.show`.
        self.figure = plt.figure(figsize=(width, height))
        self._axis = self.figure.add_subplot()
        self.figure.suptitle(title)
        self._axis.set(xlim=(0, width), ylim=(0, height))
        self._axis.axis("off")

    def box(
        self,
        x: float,
        y: float,
        text: str,
        *,
        width: float = 1.5,
        height: float = 0.42,
        fill: str = "blue",
    ) -> Box:
        """Draws a box with a text, lines separated by line breaks.

        Args:
            x: Of the centre.
            y: Of the centre.
            text: Its text.
            width: Of the box.
            height: Of the box.
            fill: A name of `FILLS`.

        Returns:
            The box, for arrows.
        """
        corner = x - width / 2, y - height / 2
        self._axis.add_patch(
            plt.Rectangle(corner, width, height, facecolor=FILLS[fill], edgecolor="#444444")
        )
        self._axis.text(x, y, text, ha="center", va="center", fontsize=8.5)
        return Box(x, y, width, height)

    def arrow(self, begin: Box, end: Box, *, sideways: bool = False) -> None:
        """Draws an arrow from box to box, with `sideways` as in `Box.edge`."""
        self.path([begin.edge(end, sideways=sideways), end.edge(begin, sideways=sideways)])

    def chain(self, boxes: Sequence[Box]) -> None:
        """Draws an arrow from each box to the next."""
        for begin, end in pairwise(boxes):
            self.arrow(begin, end)

    def path(self, places: Sequence[tuple[float, float]]) -> None:
        """Draws an arrow along straight lines.

        Args:
            places: Where it begins, its corners, and where it ends.
        """
        self._axis.plot(*zip(*places, strict=True), color="#444444", linewidth=1)
        style = {"arrowstyle": "-|>", "color": "#444444", "shrinkA": 0, "shrinkB": 0}
        self._axis.annotate("", places[-1], places[-2], arrowprops=style)

    def note(self, x: float, y: float, text: str, *, colour: str = "#444444") -> None:
        """Writes a text without a box, from this place to the right."""
        self._axis.text(x, y, text, ha="left", va="center", fontsize=8, color=colour)

    def matrix(
        self, x: float, y: float, values: ArrayLike, title: str, *, fill: str = "blue"
    ) -> Box:
        """Draws a matrix, one cell per number, first row on top.

        Args:
            x: Of the centre.
            y: Of the centre.
            values: (rows, columns).
            title: The text above it, such as its name and formula.
            fill: A name of `FILLS`.

        Returns:
            The box around it, without its title, for arrows.
        """
        table = np.atleast_2d(np.asarray(values, dtype=float))
        rows, columns = table.shape
        width, height = 0.46, 0.3
        left, top = x - columns * width / 2, y + rows * height / 2
        for (row, column), value in np.ndenumerate(table):
            corner = left + column * width, top - (row + 1) * height
            self._axis.add_patch(
                plt.Rectangle(corner, width, height, facecolor=FILLS[fill], edgecolor="white")
            )
            middle = corner[0] + width / 2, corner[1] + height / 2
            self._axis.text(*middle, f"{value:.2f}", ha="center", va="center", fontsize=8)
        self._axis.text(
            x, top + 0.05, title, ha="center", va="bottom", fontsize=8.5, color=COLOURS[0]
        )
        return Box(x, y, columns * width, rows * height)
