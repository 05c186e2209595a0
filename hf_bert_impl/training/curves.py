"""The picture of a pre-training run: losses and accuracies by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_bert_impl.figures import COLOURS, new_figure, plain

#: The panels: title, axis, and the curves (log key and name).
PANELS = (
    ("losses", "loss (nats)", {"mlm_loss": "masked words", "nsp_loss": "next sentence"}),
    (
        "accuracies",
        "accuracy (%)",
        {"mlm_accuracy": "masked words", "nsp_accuracy": "next sentence"},
    ),
)


def curves_figure(
    log: Sequence[Mapping[str, Any]], levels: Mapping[str, Mapping[str, float]], title: str
) -> Any:
    """The curves of pre-training: thin in training, thick on held-out text.

    Args:
        log: Entries with `step` and scores; held-out scores begin with `eval_`.
        levels: By axis, reference levels and their names.
        title: Above the panels.

    Returns:
        A matplotlib figure.

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
