"""The picture of a training run: its losses and accuracies over the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_bert_impl.extras import require
from hf_bert_impl.tasks.pictures import COLOURS

#: A panel each: its title, what is drawn (a key of the log and its label).
PANELS = (
    ("loss (nats)", {"mlm_loss": "masked words", "nsp_loss": "next sentence"}),
    ("accuracy", {"mlm_accuracy": "masked words", "nsp_accuracy": "next sentence"}),
)


def draw_curves(
    file: str | Path,
    title: str,
    log: Sequence[Mapping[str, Any]],
    baselines: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Draws the curves of pre-training: thin lines in training, thick ones on held-out text.

    Args:
        file: Where to; its ending names the format (png, svg, pdf).
        title: What was trained.
        log: Entries with `step` and figures, those on held-out text with names in `eval_`.
        baselines: By title of a panel, levels to compare with and their names.

    Raises:
        ValueError: matplotlib is missing.
    """
    require("matplotlib", "train", "drawing")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=10)
    for axis, (name, lines) in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        for colour, (key, label) in zip(COLOURS, lines.items(), strict=False):
            for prefix, width, more in (("", 0.9, "training"), ("eval_", 2.2, "held out")):
                points = [(row["step"], row[prefix + key]) for row in log if prefix + key in row]
                if points:
                    axis.plot(
                        *zip(*points, strict=True),
                        color=colour,
                        linewidth=width,
                        alpha=0.55 if not prefix else 1.0,
                        label=f"{label}, {more}",
                    )
        for level_name, level in (baselines or {}).get(name, {}).items():
            axis.axhline(level, color="black", linewidth=0.9, linestyle=":", label=level_name)
        axis.set_ylabel(name)
        axis.set_xlabel("step")
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.legend(fontsize=8, edgecolor="none", framealpha=1)
    figure.savefig(file, dpi=130)
