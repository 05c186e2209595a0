"""Pictures of lesson 4: BERT from scratch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from .. import figures
from ..diagram import Diagram


def whole(width: int, layers: int) -> None:
    """Draws pre-training: a pair with hidden words, the blocks, and the two heads.

    Args:
        width: Numbers of a state.
        layers: Number of blocks.
    """
    drawing = Diagram(4.4, f"The BERT of this notebook: {layers} layers of width {width}")
    shown = ["[CLS]", "a", "man", "[MASK]", "[SEP]", "he", "[MASK]", "[SEP]"]
    blocks = f"{layers} blocks: self-attention, feed-forward {width} → 512 → {width}"
    drawing.box(4.5, 1.95, blocks, width=8.4)
    drawing.box(4.5, 1.2, f"token + segment + position: (S, {width})", width=8.4)
    follows = drawing.box(1.4, 3.7, "follows, or random?", width=2.2, fill="green")
    for place, token in enumerate(shown):
        x = 0.75 + 1.07 * place
        drawing.box(x, 0.4, token, width=0.95, fill="yellow")
        drawing.path([(x, 0.61), (x, 0.99)])
        drawing.path([(x, 1.41), (x, 1.74)])
        if token == "[CLS]":
            head = drawing.box(x, 2.8, f"{width} → 2", width=0.95, fill="orange")
            drawing.arrow(head, follows)
        elif token == "[MASK]":
            head = drawing.box(x, 2.8, f"{width} → V", width=0.95, fill="orange")
            drawing.arrow(head, drawing.box(x, 3.7, "which word?", width=1.2, fill="green"))
        else:
            continue
        drawing.path([(x, 2.16), (x, 2.59)])
    figures.show(
        drawing.figure, "Pre-training: a pair with hidden words, the blocks, and the two heads"
    )


def vocabulary(counts: ArrayLike, pieces: Mapping[int, float], size: int) -> None:
    """Draws how often each token occurs, and pieces per word by the size of the vocabulary.

    Args:
        counts: Occurrences of each token, the most frequent first.
        pieces: By size of the vocabulary, pieces per word.
        size: The vocabulary of `counts`.
    """
    counts = np.asarray(counts)
    figure, (left, right) = plt.subplots(1, 2, figsize=(figures.PAGE, 3.7))
    left.loglog(np.arange(1, len(counts) + 1), counts)
    left.set(
        xlabel="rank of a token",
        ylabel="how often it occurs",
        title=f"few tokens are most of a text ({size:,} tokens)",
    )
    right.plot(list(pieces), list(pieces.values()), marker="o")
    right.set_xscale("log")
    right.set_xticks(list(pieces), [f"{size:,}" for size in pieces])
    right.minorticks_off()
    right.set(
        xlabel="size of the vocabulary",
        ylabel="pieces per word",
        title="a larger vocabulary spells less",
    )
    right.set_ylim(bottom=0.9)
    figure.suptitle("The vocabulary")
    figures.show(
        figure, "How often each token occurs, and pieces per word by the size of the vocabulary"
    )


def inputs(parts: Mapping[str, Tensor], rows: Sequence[str]) -> None:
    """Draws vectors (tokens, dimensions) side by side, the first 24 dimensions.

    Args:
        parts: Token, segment and position vectors, and their sum.
        rows: Labels of the tokens.
    """
    figure, axes = plt.subplots(
        1, len(parts), figsize=(figures.PAGE, 0.9 + 0.26 * len(rows)), sharey=True
    )
    for axis, (name, values) in zip(axes, parts.items(), strict=True):
        limit = values[:, :24].abs().max().item()
        figures.heat_map(
            axis, values[:, :24], x="dimension", y="", bar="", rows=rows, limits=(-limit, limit),
            colours="RdBu_r",
        )  # fmt: skip
        axis.set_title(name)
    axes[0].set_ylabel("token | segment | position")
    figure.supylabel(" ")
    figure.suptitle(
        "Three vectors per token, and their sum (24 dimensions; red above 0, blue below)"
    )
    figures.show(figure, "Token, segment and position vectors of a pair, and their sum")


def positions(cosines: Mapping[str, Tensor]) -> None:
    """Draws cosines of position vectors (positions, positions), side by side."""
    figure, axes = plt.subplots(1, len(cosines), figsize=(figures.PAGE, 4))
    for axis, (name, values) in zip(axes, cosines.items(), strict=True):
        figures.heat_map(
            axis, values, x="position", y="position", bar="cosine", limits=(-1, 1),
            colours="RdBu_r",
        )  # fmt: skip
        axis.set_title(name)
    figure.suptitle("Cosine of the vectors of two positions")
    figures.show(figure, "Cosines of position vectors, before training and in MiniLM")


def tasks(fates: Mapping[str, float], random_share: float) -> None:
    """Draws shares, 0 to 1: what happens to tokens, and how many pairs are random."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(figures.PAGE, 3.2), width_ratios=(1.5, 1))
    begin = 0.0
    for (name, share), colour in zip(fates.items(), ("#d9d9d9", *figures.COLOURS), strict=False):
        part = 100 * share
        label = f"{name} ({part:.1f} %)"
        left.barh(["tokens"], [part], left=[begin], color=colour, label=label, height=0.5)
        begin += part
    left.set(xlabel="share of the tokens (%)", ylabel="masked LM", title="masked words")
    left.set_xlim(0, 100)
    left.legend(fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.3))
    heights = [100 * (1 - random_share), 100 * random_share]
    right.bar(["follows", "random"], heights, color=figures.COLOURS[:2], width=0.5)
    right.set(xlabel="second segment", ylabel="share of the pairs (%)", title="next sentence")
    figure.suptitle("Measured shares of both tasks")
    figures.show(figure, "Shares of masked, random and unchanged tokens, and of random pairs")


def losses(steps: Sequence[float], ignorant: float, held_out: float) -> None:
    """Draws the loss of each step.

    Args:
        steps: Losses of both tasks, in nats.
        ignorant: The loss of a model that ignores the context.
        held_out: The trained model's loss on held-out text.
    """
    figure, axis = plt.subplots(figsize=(figures.PAGE, 3.4))
    axis.plot(steps, linewidth=0.5, alpha=0.4)
    width = max(1, len(steps) // 40)
    smooth = np.convolve(steps, np.ones(width) / width, "valid")
    axis.plot(np.arange(width - 1, len(steps)), smooth, label=f"mean of {width} steps")
    label = "frequency for words, chance for pairs"
    axis.axhline(ignorant, color="black", linestyle=":", label=label)
    axis.axhline(held_out, color=figures.COLOURS[2], linestyle="--", label="held out")
    axis.set(
        xlabel="step", ylabel="loss of both tasks (nats)", title="Pre-training of a small BERT"
    )
    axis.legend(fontsize=8)
    figures.show(figure, "Loss of pre-training, and the held-out loss")


def next_sentence(shares: Mapping[str, Mapping[str, float]], pairs: Mapping[str, int]) -> None:
    """Draws accuracies, 0 to 1.

    Args:
        shares: By classifier, the accuracy on each text.
        pairs: By text, the number of its pairs.
    """
    figure, axis = plt.subplots(figsize=(figures.PAGE, 3.4))
    for place, (name, values) in enumerate(shares.items()):
        at = np.arange(len(values)) + 0.27 * (place - 1)
        bars = axis.bar(at, [100 * value for value in values.values()], 0.25, label=name)
        axis.bar_label(bars, fmt="%.0f", fontsize=8)
    axis.axhline(50, color="black", linestyle=":", linewidth=0.9, label="chance")
    axis.set_xticks(range(len(pairs)), [f"{name} ({n} pairs)" for name, n in pairs.items()])
    axis.set(xlabel="held-out text", ylabel="accuracy (%)", ylim=(0, 100))
    axis.grid(axis="x", visible=False)
    axis.legend(fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.18))
    axis.set_title("Does the second sentence follow the first?")
    figures.show(
        figure, "Next-sentence accuracy on captions and articles: words in common, before, after"
    )


def layer(width: int, inner: int, heads: int) -> None:
    """Draws one layer of BERT with the names of its parts in a checkpoint.

    Args:
        width: Numbers of a state.
        inner: Size of the feed-forward network.
        heads: Heads of the attention.
    """
    drawing = Diagram(7.6, "One layer: each half adds to its input and normalises", width=7.5)
    drawing.box(4.1, 2.2, "", width=6.4, height=2.9, fill="grey")
    drawing.note(1.0, 3.5, "attention")
    drawing.box(4.1, 5.2, "", width=6.4, height=2.9, fill="grey")
    drawing.note(1.0, 6.5, "intermediate, output")
    given = drawing.box(4.1, 0.3, f"states (B, S, {width})", width=2.4, fill="yellow")
    parts = [
        drawing.box(x, 1.2, f"{name}\n{width} → {width}", width=1.3, height=0.5)
        for x, name in ((2.5, "self.query"), (4.1, "self.key"), (5.7, "self.value"))
    ]
    scores = f"{heads} heads of {width // heads}: softmax(q · k / √{width // heads}) · v"
    mixed = drawing.box(4.1, 2.05, scores, width=4.2, fill="orange")
    dense = drawing.box(4.1, 2.65, f"output.dense: {width} → {width}", width=2.6)
    add = drawing.box(4.1, 3.3, "+, output.LayerNorm", width=2.2, fill="green")
    wide = drawing.box(4.1, 4.35, f"intermediate.dense: {width} → {inner}", width=2.9)
    gelu = drawing.box(4.1, 4.95, f"gelu, number by number: {inner}", width=2.9, fill="orange")
    back = drawing.box(4.1, 5.55, f"output.dense: {inner} → {width}", width=2.9)
    end = drawing.box(4.1, 6.25, "+, output.LayerNorm", width=2.2, fill="green")
    out = drawing.box(4.1, 7.1, f"states (B, S, {width})", width=2.4, fill="yellow")
    for part in parts:
        drawing.arrow(given, part)
        drawing.arrow(part, mixed)
    drawing.chain([mixed, dense, add, wide, gelu, back, end, out])
    drawing.path([(2.9, 0.3), (1.2, 0.3), (1.2, 3.3), (3.0, 3.3)])
    drawing.path([(4.1, 3.85), (1.2, 3.85), (1.2, 6.25), (3.0, 6.25)])
    figures.show(drawing.figure, "One layer of BERT: attention, feed-forward network, residuals")


def pairs_of_words(
    tables: Sequence[tuple[str, ArrayLike]], verbs: Sequence[str], objects: Sequence[str]
) -> None:
    """Draws the shares of pairs (verbs, objects), side by side.

    Args:
        tables: A title and the shares, 0 to 1, of each panel.
        verbs: Words for the first hole.
        objects: Words for the second hole.
    """
    figure, axes = plt.subplots(1, len(tables), figsize=(figures.PAGE, 3.4), sharey=True)
    for number, (axis, (title, values)) in enumerate(zip(axes, tables, strict=True)):
        percent = 100 * np.asarray(values)
        figures.heat_map(
            axis, percent, x="object (second hole)", y=" " if number else "verb (first hole)",
            bar="share of the pairs (%)" if number == len(tables) - 1 else "", columns=objects,
            rows=verbs, limits=(0, 100), colours="Blues",
        )  # fmt: skip
        axis.tick_params(axis="x", rotation=0)
        for (row, column), value in np.ndenumerate(percent):
            colour = "white" if value > 60 else "black"
            axis.text(column, row, f"{value:.0f}", ha="center", va="center", color=colour)
        axis.set_title(title)
    figure.suptitle("A verb and its object: two hidden words")
    figures.show(figure, "Shares of pairs of a verb and an object: both at once, in turn, counted")
