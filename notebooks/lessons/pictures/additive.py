"""Pictures of lesson 1: additive attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from .. import figures
from ..diagram import Diagram


def step(embedding: int, size: int) -> None:
    """Draws one step of the decoder.

    Args:
        embedding: Numbers of a word's vector.
        size: Numbers of a recurrent state.
    """
    drawing = Diagram(4.3, "Reading Chinese, writing English: one step of the decoder")
    states = []
    for place, character in enumerate("昨天我在家"):
        x = 1.0 + 1.6 * place
        read = drawing.box(x, 0.35, character, width=0.8, fill="yellow")
        state = drawing.box(x, 1.15, f"annotation\n2 × {size}", width=1.25, height=0.5)
        drawing.arrow(read, state)
        states.append(state)
    for left, right in pairwise(states):
        drawing.arrow(left, right)
        drawing.arrow(right, left)
    weigh = "attention: a weight for each annotation"
    attention = drawing.box(4.2, 2.15, weigh, width=3.6, fill="orange")
    for state in states:
        drawing.arrow(state, attention)
    decoder = drawing.box(4.2, 3.05, f"decoder state, {size}", width=2.2, fill="green")
    drawing.arrow(attention, decoder)
    drawing.note(4.3, 2.6, f"context, 2 × {size}")
    before = drawing.box(1.3, 3.05, f"word before: “was”, {embedding}", width=2.2, fill="yellow")
    scores = "scores of the next word\n“home” is best"
    after = drawing.box(7.3, 3.05, scores, height=0.5, width=2.2)
    drawing.arrow(before, decoder)
    drawing.arrow(decoder, after)
    drawing.path([(5.0, 3.26), (5.0, 3.8), (8.8, 3.8), (8.8, 2.15), (6.0, 2.15)])
    drawing.note(5.2, 3.95, "the state is the query of the next step")
    figures.show(drawing.figure, "One step of the decoder: annotations, attention, state, word")


def losses(runs: Mapping[str, Sequence[Sequence[float]]], batch: int) -> None:
    """Draws training losses.

    Args:
        runs: By network, the smoothed losses of each seed.
        batch: Pairs per step.
    """
    figure, axis = plt.subplots(figsize=(figures.PAGE, 3.4))
    for (name, seeds), colour in zip(runs.items(), figures.COLOURS, strict=False):
        for number, values in enumerate(seeds):
            steps = range(1, len(values) + 1)
            label = None if number else f"{name} ({len(seeds)} seeds)"
            axis.plot(steps, values, color=colour, linewidth=1, label=label)
    axis.set(
        title="Training loss under teacher forcing, mean of 50 steps",
        xlabel=f"step (batches of {batch} pairs)",
        ylabel="cross-entropy (nats per word)",
    )
    axis.legend()
    figures.show(figure, "Training loss of both translators")


def bars(
    heights: Mapping[str, Sequence[Sequence[float]]],
    places: Sequence[str],
    *,
    title: str,
    x: str,
    description: str,
) -> None:
    """Draws BLEU in groups of two bars: mean of the seeds, minimum and maximum as error bars.

    Args:
        heights: By the name of a bar, for each place the BLEU of each seed.
        places: Names of the groups.
        title: Of the picture.
        x: Label of the groups.
        description: The alternative text.
    """
    figure, axis = plt.subplots(figsize=(figures.PAGE, 3.4))
    for offset, (name, groups) in zip((-0.18, 0.18), heights.items(), strict=True):
        means = np.array([np.mean(seeds) for seeds in groups])
        spread = [means - [min(seeds) for seeds in groups], [max(s) for s in groups] - means]
        where = np.arange(len(groups)) + offset
        axis.bar(where, means, width=0.34, label=name)
        axis.errorbar(where, means, yerr=spread, fmt="none", color="#444444", capsize=4)
        for at, mean, above in zip(where, means, spread[1], strict=True):
            axis.text(at, mean + above + 0.3, f"{mean:.1f}", ha="center", va="bottom", fontsize=9)
    axis.set_xticks(range(len(places)), places)
    axis.grid(axis="x", visible=False)
    axis.margins(y=0.15)
    axis.set(title=title, xlabel=x, ylabel="BLEU (0 to 100)")
    axis.legend()
    figures.show(figure, description)


def alignment(weights: ArrayLike, read: Sequence[str], written: Sequence[str]) -> None:
    """Draws the attention weights (written, read) of one sentence, with the larger numbers."""
    figure, axis = plt.subplots(figsize=(7.0, 4.9))
    figures.heat_map(
        axis, weights, x="read (Chinese)", y="written (English)", bar="attention weight",
        columns=read, rows=written, limits=(0, 1), colours="Blues",
    )  # fmt: skip
    axis.tick_params(axis="x", rotation=0, labelsize=12)
    axis.tick_params(axis="y", labelsize=11)
    for (row, column), value in np.ndenumerate(np.asarray(weights)):
        if value >= 0.15:
            colour = "white" if value > 0.55 else "black"
            axis.text(column, row, f"{value:.1f}", ha="center", va="center", color=colour)
    axis.set_title("Where the decoder attends while it writes")
    figures.show(figure, "Attention weights of a sentence whose time moves to the end")


def three_scores(
    weights: Mapping[str, ArrayLike],
    bleu: Mapping[str, float],
    read: Sequence[str],
    written: Sequence[str],
) -> None:
    """Draws the weights (written, read) of one sentence under three scores, with their BLEU."""
    figure, axes = plt.subplots(1, len(weights), figsize=(figures.PAGE, 3.6), sharey=True)
    for number, (axis, name) in enumerate(zip(axes, weights, strict=True)):
        figures.heat_map(
            axis, weights[name], x="read (Chinese)", y=" " if number else "written (English)",
            bar="attention weight" if number == len(weights) - 1 else "", columns=read,
            rows=written, limits=(0, 1), colours="Blues",
        )  # fmt: skip
        axis.tick_params(axis="x", rotation=0)
        axis.set_title(f"{name}: BLEU {bleu[name]:.1f}")
    figure.suptitle("One sentence, three scores")
    figures.show(figure, "One sentence and BLEU with additive, dot-product and cosine scores")


def addressing(
    query: float,
    keys: Tensor,
    weights: Mapping[float, Tensor],
    places: Tensor,
    read: Mapping[float, Tensor],
    values: Mapping[float, float],
) -> None:
    """Draws the weights of one query over keys on a line, and what other queries read.

    Args:
        query: The one query.
        keys: (S,), where sin(key) is stored.
        weights: By sharpness, the weights of the query (S,).
        places: Other queries.
        read: By sharpness, what they read.
        values: By sharpness, what the one query reads.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(figures.PAGE, 3.4))
    for sharpness, found in weights.items():
        label = f"β = {sharpness:g}, reads {values[sharpness]:.2f}"
        left.plot(keys, found, marker="o", markersize=4, label=label)
    left.set(title=f"The query {query:g} addresses 13 keys", xlabel="key", ylabel="weight (sum 1)")
    left.legend(fontsize=8)
    right.plot(places, places.sin(), color="#999999", linestyle="--", label="stored: sin(key)")
    for sharpness, found in read.items():
        right.plot(places, found, label=f"read with β = {sharpness:g}")
    right.set(title="What each query reads", xlabel="query", ylabel="value read")
    right.legend(fontsize=8)
    figures.show(figure, "Soft addressing: weights of a query over 13 keys, and what is read")


def scaling(
    measured: Mapping[str, Sequence[tuple[float, float, float]]], sizes: Sequence[int], keys: int
) -> None:
    """Draws variance of the scores, largest weight, and gradient, by the size of the query.

    Args:
        measured: By score, these three for each size.
        sizes: The sizes d.
        keys: Keys of each query.
    """
    figure, axes = plt.subplots(1, 3, figsize=(figures.PAGE, 3.6))
    titles = "Variance of the scores", f"Largest of {keys} weights", "Gradient through softmax"
    units = "variance", "weight (mean of 512 queries)", "norm of the Jacobian (mean)"
    for column, (axis, title, unit) in enumerate(zip(axes, titles, units, strict=True)):
        for name, rows in measured.items():
            axis.plot(sizes, [row[column] for row in rows], marker="o", markersize=4, label=name)
        axis.set_xscale("log", base=2)
        axis.set(title=title, xlabel="size d of query and key", ylabel=unit)
    axes[0].set_yscale("log")
    axes[0].legend(fontsize=8)
    axes[1].axhline(1 / keys, color="#999999", linestyle="--", linewidth=1)
    axes[1].annotate(
        f"evenly: 1/{keys}", (sizes[3], 1 / keys), xytext=(0, -11), textcoords="offset points",
        fontsize=8, color="#555555",
    )  # fmt: skip
    axes[1].set_ylim(0, 1.02)
    figures.show(figure, "Variance of the scores, largest weight and gradient, by the size")


def saturation(plain: ArrayLike, scaled: ArrayLike, sizes: Sequence[int]) -> None:
    """Draws sorted softmax weights (sizes, ranks) of plain and of scaled dot products."""
    figure, axes = plt.subplots(1, 2, figsize=(figures.PAGE, 3.4), sharey=True)
    panels = ((r"softmax of $q \cdot k$", plain), (r"softmax of $q \cdot k / \sqrt{d}$", scaled))
    for axis, (title, weights) in zip(axes, panels, strict=True):
        figures.heat_map(
            axis, weights, x="rank of the key by its weight", y="size d of query and key",
            columns=[str(rank) for rank in range(1, np.shape(weights)[1] + 1)],
            bar="weight" if weights is scaled else "", rows=[str(size) for size in sizes],
            limits=(0, 1),
        )  # fmt: skip
        axis.set_title(title)
    figures.show(figure, "Sorted softmax weights against the size, plain and scaled")
