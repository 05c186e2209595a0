"""Pictures of lesson 10: conversion of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt

from .. import figures
from ..diagram import Diagram


def formats() -> None:
    """Draws the way from four formats to one folder, and the check."""
    drawing = Diagram(4.3, "From the bytes of four programs to one folder")
    reads = [
        drawing.box(1.3, y, text, width=2.3, fill="yellow")
        for y, text in (
            (3.5, "TensorFlow 1: index, data"),
            (2.75, "Keras: h5"),
            (2.0, "Flax: msgpack"),
            (1.25, "codertimo: pickle"),
        )
    ]
    named = "a reader each:\nnamed arrays"
    arrays = drawing.box(4.1, 2.4, named, width=1.7, height=0.7, fill="orange")
    for begin in reads:
        drawing.arrow(begin, arrays, sideways=True)
    names = "tables of names:\nturn, split, join"
    table = drawing.box(6.0, 2.4, names, width=1.6, height=0.7, fill="green")
    made = "a folder: config,\nweights, vocabulary"
    folder = drawing.box(8.0, 2.4, made, width=1.6, height=0.7, fill="yellow")
    check = drawing.box(6.0, 1.0, "largest difference", width=1.6)
    original = drawing.box(4.1, 0.3, "the original outputs", width=2.3, fill="yellow")
    ours = drawing.box(8.0, 1.0, "AutoModel: outputs", width=1.6, fill="orange")
    pairs = ((arrays, table), (table, folder), (folder, ours), (ours, check), (original, check))
    for begin, end in pairs:
        drawing.arrow(begin, end)
    saved = "torch.save:\npytorch_model.bin"
    back = drawing.box(8.0, 3.5, saved, width=1.6, height=0.6, fill="yellow")
    drawing.arrow(folder, back)
    figures.show(drawing.figure, "Four formats, their readers, the tables of names, and the check")


def differences(curves: Mapping[str, Sequence[float]], bound: float) -> None:
    """Draws the largest difference from the original software, after each layer.

    Args:
        curves: By checkpoint, the differences of the embeddings and of two layers.
        bound: The bound of the check.
    """
    figure, axis = plt.subplots(figsize=(7.5, 4))
    for (title, gaps), marker in zip(curves.items(), "os^Dx", strict=True):
        style = ":" if "wrong" in title else "-"
        axis.plot([max(gap, 1e-8) for gap in gaps], marker=marker, linestyle=style, label=title)
    axis.set_yscale("log")
    axis.set_xticks(range(3), ["embeddings", "layer 1", "layer 2"])
    axis.set(
        xlabel="where",
        ylabel="largest absolute difference",
        title="Converted checkpoints compared with the original software",
    )
    axis.axhline(bound, color="black", linewidth=1, linestyle="--")
    axis.annotate("bound of the check", (0, bound), (0, 4), "data", "offset points", fontsize=8)
    axis.legend(fontsize=8, loc="upper left")
    figures.show(
        figure, "Differences between converted checkpoints and the outputs of the original software"
    )
