"""The picture of a run: curves by step or epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hf_bert_impl.figures import COLOURS, new_figure, plain, save

Points = Sequence[tuple[float, float]]


def draw_curves(
    file: Path,
    title: str,
    unit: str,
    panels: Mapping[str, Mapping[str, Points]],
    levels: Mapping[str, Mapping[str, float]],
) -> None:
    """Draws curves side by side: thin in training, thick on held-out data.

    Args:
        file: The picture.
        title: Above the panels.
        unit: Of the horizontal axis.
        panels: By vertical axis, the points of each curve, named as in "masked words, held out".
        levels: By vertical axis, reference levels and their names.

    Raises:
        InputError: matplotlib is missing.
    """
    figure, axes = new_figure(10, 4.8, title, columns=len(panels))
    for axis, (name, curves) in zip(axes[0], panels.items(), strict=True):
        subjects = list(dict.fromkeys(label.partition(", ")[0] for label in curves))
        for label, points in curves.items():
            subject, _, where = label.partition(", ")
            thick = {"linewidth": 2.4, "marker": "o", "markersize": 4}
            thin = {"linewidth": 0.9, "alpha": 0.6}
            colour = COLOURS[subjects.index(subject) % len(COLOURS)]
            style = thick if where == "held out" else thin
            axis.plot(*zip(*points, strict=True), color=colour, label=label, **style)
        for label, level in levels.get(name, {}).items():
            axis.axhline(level, color="black", linestyle=":", linewidth=0.9, label=label)
        axis.set(xlabel=unit, ylabel=name)
        lowest = min((y for points in curves.values() for _, y in points), default=0.0)
        axis.set_ylim(min(0.0, lowest), 100 if "%" in name else None)
        plain(axis)
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.15)}
        axis.legend(fontsize=8, frameon=False, ncols=2, **place)
    save(figure, file)
