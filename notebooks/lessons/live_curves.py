"""Curves that grow in a notebook while a model is pre-trained."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from IPython.display import display
from matplotlib.figure import Figure
from transformers import TrainerCallback

from . import figures

#: Seconds between two drawings.
PAUSE = 3.0
#: The panels: title, axis, and the curves (a key of the log, and its name in the picture).
PANELS = (
    ("losses", "loss (nats)", {"mlm_loss": "masked words", "nsp_loss": "next sentence"}),
    (
        "how often the best guess is right",
        "accuracy (%)",
        {"mlm_accuracy": "masked words", "nsp_accuracy": "next sentence"},
    ),
)


class LiveCurves(TrainerCallback):
    """Draws what the Trainer logs, again and again in the same place.

    Args:
        levels: By the axis of a panel, levels to compare with and their names.
    """

    def __init__(self, levels: Mapping[str, Mapping[str, float]] | None = None) -> None:
        self.levels = levels or {}
        self._handle: Any = None
        self._drawn = 0.0

    def on_log(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Draws if the last picture is old enough."""
        if time.monotonic() - self._drawn > PAUSE:
            self._draw(state.log_history)

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Draws all curves anew."""
        self._draw(state.log_history)

    def _draw(self, log: Sequence[Mapping[str, Any]]) -> None:
        figure = draw(log, self.levels, "Pre-training, so far")
        plt.close(figure)  # the display shows it, and nothing else does
        if self._handle is None:
            self._handle = display(figure, display_id=True)
        else:
            self._handle.update(figure)
        self._drawn = time.monotonic()


def draw(
    log: Sequence[Mapping[str, Any]], levels: Mapping[str, Mapping[str, float]], title: str
) -> Figure:
    """The curves of a log: thin lines in training, thick ones on held-out text.

    Args:
        log: Entries with `step` and figures, those on held-out text with names in `eval_`.
        levels: As in `LiveCurves`.
        title: Of the picture.

    Returns:
        The picture.
    """
    figure, axes = plt.subplots(1, 2, figsize=(figures.PAGE, 3.9))
    for axis, (name, unit, lines) in zip(axes, PANELS, strict=True):
        scale = 100 if "%" in unit else 1
        for (key, label), colour in zip(lines.items(), figures.COLOURS, strict=False):
            for prefix, where, width in (("", "training", 0.9), ("eval_", "held out", 2.4)):
                points = [(e["step"], scale * e[prefix + key]) for e in log if prefix + key in e]
                if points:
                    axis.plot(
                        *zip(*points, strict=True),
                        color=colour,
                        linewidth=width,
                        alpha=1 if prefix else 0.6,
                        label=f"{label}, {where}",
                    )
        for label, level in levels.get(unit, {}).items():
            axis.axhline(level, color="black", linestyle=":", linewidth=1, label=label)
        axis.set(xlabel="step", ylabel=unit, title=name)
        axis.set_ylim(0, 1.4 * axis.get_ylim()[1])  # with room for the legend
        axis.legend(fontsize=8)
    figure.suptitle(title)
    return figure
