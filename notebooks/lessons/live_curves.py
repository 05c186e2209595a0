"""Curves that grow in a notebook while a model is pre-trained."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from IPython.display import display
from transformers import TrainerCallback

from hf_bert_impl.training.curves import curves_figure

#: Seconds between two drawings.
PAUSE = 3.0


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
        figure = curves_figure(log, self.levels, "Pre-training, so far")
        if self._handle is None:
            self._handle = display(figure, display_id=True)
        else:
            self._handle.update(figure)
        self._drawn = time.monotonic()
