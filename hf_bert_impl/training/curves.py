"""The picture of a training run: its losses and accuracies over the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_bert_impl.figures import COLOURS, new_figure, plain

#: The panels: title, axis, and the curves (a key of the log, and its name in the picture).
PANELS = (
    ("losses", "loss (nats)", {"mlm_loss": "masked words", "nsp_loss": "next sentence"}),
    (
        "how often the best guess is right",
        "accuracy (%)",
        {"mlm_accuracy": "masked words", "nsp_accuracy": "next sentence"},
    ),
)


def curves_figure(
    log: Sequence[Mapping[str, Any]], levels: Mapping[str, Mapping[str, float]], title: str
) -> Any:
    """The curves of pre-training: thin lines in training, thick ones on held-out text.

    Args:
        log: Entries with `step` and figures, those on held-out text with names in `eval_`.
        levels: By the axis of a panel, levels to compare with and their names.
        title: What was trained.

    Returns:
        A figure of matplotlib.

    Raises:
        InputError: matplotlib is missing.
    """
    figure, axes = new_figure(10, 4.8, title, columns=len(PANELS))
    for axis, (name, unit, lines) in zip(axes[0], PANELS, strict=True):
        scale = 100 if "%" in unit else 1
        for (key, label), colour in zip(lines.items(), COLOURS, strict=False):
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
            axis.axhline(level, color="black", linestyle=":", linewidth=0.9, label=label)
        axis.set(xlabel="step", ylabel=unit, title=name)
        axis.set_ylim(0, 100 if "%" in unit else None)
        plain(axis)
        axis.legend(
            fontsize=8, frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.15)
        )
    return figure
