"""Pictures of lesson 8: attention, heads and layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import figures
from ..diagram import Diagram


def three_ways(layers: int, heads: int, width: int) -> None:
    """Draws what each layer offers to examine.

    Args:
        layers: Number of layers.
        heads: Heads of each.
        width: Numbers of a state.
    """
    drawing = Diagram(5.0, f"Three ways to examine a BERT of {layers} layers")
    tokens = drawing.box(4.5, 0.3, "tokens (S)", width=1.6, fill="yellow")
    below = drawing.box(4.5, 0.95, f"embeddings (S, {width})", width=2.2)
    drawing.arrow(tokens, below)
    stack = []
    for number, y in ((1, 1.65), (2, 2.35), (layers, 3.45)):
        text = f"layer {number}: {heads} heads, feed-forward"
        stack.append(drawing.box(4.5, y, text, width=2.7, fill="orange"))
    drawing.chain([below, *stack])
    drawing.note(4.55, 2.92, "…")
    answer = drawing.box(4.5, 4.2, "the task's classifier: accuracy", width=2.4, fill="green")
    drawing.arrow(stack[-1], answer)
    look = drawing.box(1.3, 2.35, f"1. look: weights\n({heads}, S, S) of each layer", width=2.2)
    classify = f"3. probe: a classifier on\nthe states (S, {width})"
    probe = drawing.box(7.7, 2.35, classify, width=2.2)
    take = drawing.box(1.3, 4.2, "2. remove a head:\nwhat does it cost?", width=2.3)
    for box in stack:
        drawing.arrow(box, look, sideways=True)
        drawing.arrow(box, probe, sideways=True)
    drawing.arrow(take, answer)
    figures.show(
        drawing.figure, "Three ways to examine a BERT: its attention weights, its heads, its states"
    )


def pronoun(weights: Mapping[tuple[str, str], NDArray[np.floating]]) -> None:
    """Draws weights (layers, heads) from “it” to a noun, by the last word and the noun."""
    figure, axes = plt.subplots(2, 2, figsize=(figures.PAGE, 5.6), sharex=True, sharey=True)
    limit = max(float(values.max()) for values in weights.values())
    for axis, ((word, noun), values) in zip(axes.flat, weights.items(), strict=True):
        figures.heat_map(
            axis, values, x="head", y="layer", bar="attention weight", limits=(0, limit)
        )
        axis.set_title(f"“… it was too {word}”: it → {noun}")
    figure.suptitle("Attention from “it” to either noun, for each of MiniLM's heads")
    figures.show(figure, "Attention of each head from it to animal and to street")


def kinds(
    shares: NDArray[np.floating],
    names: Sequence[str],
    entropies: NDArray[np.floating],
    uniform: float,
    sentences: int,
) -> None:
    """Draws where the attention of each layer goes, and how widely each head attends.

    Args:
        shares: (layers, heads, kinds), 0 to 1.
        names: Of the kinds of tokens; the last one is all others.
        entropies: (layers, heads), in nats.
        uniform: The entropy of equal weights.
        sentences: Number of sentences.
    """
    layers, heads = entropies.shape
    figure, (left, right) = plt.subplots(1, 2, figsize=(figures.PAGE, 3.8), width_ratios=(1.4, 1))
    begin = np.zeros(layers)
    for kind, name in enumerate(names):
        mean = shares[..., kind].mean(axis=1)
        colour = "#cccccc" if name == "others" else None
        left.bar(
            range(layers), 100 * mean, bottom=100 * begin, label=name, color=colour, width=0.75
        )
        begin += mean
    left.set(
        xlabel="layer", ylabel="share of the attention (%)", title="mean over the heads of a layer"
    )
    left.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9)
    left.grid(axis="x", visible=False)
    for layer in range(layers):
        right.scatter([layer] * heads, entropies[layer], s=18, color=figures.COLOURS[0], alpha=0.7)
    right.axhline(uniform, color="black", linestyle=":", linewidth=1)
    same = "the same weight on every token"
    right.annotate(same, (0, uniform), (0, -12), "data", "offset points", fontsize=8)
    right.set(
        xlabel="layer", ylabel="mean entropy of a head (nats)", title="how widely a head attends"
    )
    right.set_ylim(bottom=0)
    figure.suptitle(f"Where attention goes: MiniLM over {sentences} sentences")
    figures.show(figure, "Shares and entropy of attention by layer")


def four_heads(maps: Mapping[str, ArrayLike], tokens: Sequence[str]) -> None:
    """Draws the weights (tokens, tokens) of four heads, by title."""
    figure, axes = plt.subplots(2, 2, figsize=(figures.PAGE, 8.6))
    for axis, (title, weights) in zip(axes.flat, maps.items(), strict=True):
        figures.heat_map(
            axis, weights, x="to (key)", y="from (query)", bar="attention weight",
            columns=tokens, rows=tokens, limits=(0, 1),
        )  # fmt: skip
        axis.set_title(title)
        axis.tick_params(labelsize=8)
    figure.suptitle("Four heads of MiniLM on one sentence")
    figures.show(figure, "Attention of four heads on one sentence")


def importance(values: NDArray[np.floating], least: Mapping[int, Sequence[int]]) -> None:
    """Draws the importance of heads, and frames the lowest.

    Args:
        values: (layers, heads), 0 to 1.
        least: By layer, the heads to frame.
    """
    layers, heads = values.shape
    figure, axis = plt.subplots(figsize=(8.8, 4.4), layout="constrained")
    image = axis.imshow(values, vmin=0, vmax=1, aspect="auto")
    axis.grid(False)
    for layer, framed in least.items():
        for head in framed:
            corner = head - 0.46, layer - 0.45
            axis.add_patch(plt.Rectangle(corner, 0.92, 0.9, fill=False, color="red"))
    axis.set(xlabel="head", ylabel="layer", xticks=range(heads), yticks=range(layers))
    count = sum(len(framed) for framed in least.values())
    axis.set_title(f"Importance of MiniLM's heads for sentiment, the lowest {count} framed")
    figure.colorbar(image, label="importance (ℓ2 norm of a layer: 1)")
    figures.show(figure, "Importance of every head; the lowest values are framed")


def pruning(
    counts: Sequence[int],
    curves: Mapping[str, ArrayLike],
    majority: float,
    heads: int,
    sentences: int,
) -> None:
    """Draws the accuracy (0 to 1) by the number of removed heads.

    Args:
        counts: Numbers of removed heads.
        curves: By order of removal, the accuracies.
        majority: Accuracy of the majority class.
        heads: All heads.
        sentences: Number of sentences.
    """
    figure, axis = plt.subplots(figsize=(7.5, 4))
    for (name, curve), marker in zip(curves.items(), "os^", strict=True):
        axis.plot(counts, 100 * np.asarray(curve), marker=marker, label=name)
    axis.axhline(100 * majority, color="black", linestyle=":", linewidth=1)
    place = 0, 100 * majority
    axis.annotate("the majority class", place, (2, 4), "data", "offset points", fontsize=8)
    axis.set(
        xlabel=f"heads removed (of {heads}; one per layer stays)",
        ylabel=f"accuracy on {sentences} sentences (%)",
        title="Pruning heads: sentiment, MiniLM fine-tuned",
    )
    axis.legend()
    figures.show(figure, "Accuracy against the number of heads removed, in three orders")


def probes(found: Mapping[str, tuple[Sequence[float], float]]) -> None:
    """Draws the accuracy (0 to 1) of probes on the embeddings and on each layer.

    Args:
        found: By probe, these accuracies, and that of the majority class.
    """
    figure, axis = plt.subplots(figsize=(7.5, 4))
    for (name, (values, baseline)), marker, colour in zip(
        found.items(), "os^", figures.COLOURS, strict=False
    ):
        axis.plot([100 * x for x in values], marker=marker, color=colour, label=name)
        axis.axhline(100 * baseline, color=colour, linestyle=":", linewidth=1)
        layers = len(values) - 1
    axis.set_xticks(range(layers + 1), ["embeddings", *map(str, range(1, layers + 1))])
    axis.set(
        xlabel="layer",
        ylabel="accuracy of the probe (%)",
        title="Accuracy of a linear probe on each layer",
    )
    axis.legend(title="dotted: the majority class", fontsize=9, title_fontsize=8, loc=(0.02, 0.12))
    figures.show(figure, "Accuracy of three probes by layer")
