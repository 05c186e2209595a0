"""Pictures of lesson 3: the Transformer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from .. import figures
from ..diagram import Box, Diagram
from ..transformer import Sizes


def _layer(drawing: Diagram, x: float, y: float, text: str, fill: str, below: Box) -> Box:
    """Draws norm, layer and "+" above each other, with the residual line; returns the "+"."""
    norm = drawing.box(x, y, "norm", width=2.3, height=0.3)
    layer = drawing.box(x, y + 0.5, text, width=2.3, height=0.36, fill=fill)
    plus = drawing.box(x, y + 1.0, "+", width=0.4, height=0.3, fill="yellow")
    drawing.chain([below, norm, layer, plus])
    drawing.path([(x, y - 0.3), (x - 1.35, y - 0.3), (x - 1.35, y + 1.0), (x - 0.2, y + 1.0)])
    return plus


def encoder(sizes: Sizes) -> None:
    """Draws the first step: the encoder with its residual lines."""
    drawing = Diagram(6.0, "Step 1: the encoder reads", width=5.5)
    drawing.box(2.75, 3.05, "", width=3.5, height=3.2, fill="grey")
    drawing.note(3.7, 4.5, f"{sizes.blocks} blocks")
    words = drawing.box(2.75, 0.3, "words read (B, S)", width=2.6, fill="yellow")
    vectors = drawing.box(2.75, 0.95, f"word + position (B, S, {sizes.size})", width=2.6)
    drawing.arrow(words, vectors)
    look = f"self-attention, {sizes.heads} heads"
    plus = _layer(drawing, 2.75, 1.85, look, "orange", vectors)
    feed = f"feed-forward {sizes.size} → {sizes.hidden} → {sizes.size}"
    plus = _layer(drawing, 2.75, 3.45, feed, "green", plus)
    norm = drawing.box(2.75, 5.05, "norm", width=2.3, height=0.3)
    memory = drawing.box(2.75, 5.65, f"memory (B, S, {sizes.size})", width=2.6, fill="yellow")
    drawing.chain([plus, norm, memory])
    drawing.note(1.45, 3.0, "residual")
    figures.show(drawing.figure, "Step 1: the encoder, with a residual line around each layer")


def decoder(sizes: Sizes) -> None:
    """Draws the second step: the decoder with its residual lines and the memory."""
    drawing = Diagram(8.4, "Step 2: the decoder writes", width=7.0)
    drawing.box(4.6, 3.85, "", width=3.5, height=4.8, fill="grey")
    drawing.note(5.55, 6.1, f"{sizes.blocks} blocks")
    words = drawing.box(4.6, 0.3, "words written so far (B, T)", width=2.6, fill="yellow")
    vectors = drawing.box(4.6, 0.95, f"word + position (B, T, {sizes.size})", width=2.6)
    drawing.arrow(words, vectors)
    plus = _layer(drawing, 4.6, 1.85, "self-attention, only the past", "orange", vectors)
    plus = _layer(drawing, 4.6, 3.45, "cross-attention", "orange", plus)
    feed = f"feed-forward {sizes.size} → {sizes.hidden} → {sizes.size}"
    plus = _layer(drawing, 4.6, 5.05, feed, "green", plus)
    norm = drawing.box(4.6, 6.65, "norm", width=2.3, height=0.3)
    scores = drawing.box(4.6, 7.3, f"times the word matrix, {sizes.size} → V", width=2.6)
    ends = drawing.box(4.6, 7.95, "scores of the next word (B, T, V)", width=2.6, fill="yellow")
    drawing.chain([plus, norm, scores, ends])
    drawing.box(1.15, 3.95, "the encoder's\nmemory", width=1.4, height=0.6, fill="yellow")
    drawing.path([(1.85, 3.95), (3.45, 3.95)])
    drawing.note(1.9, 4.12, "keys, values")
    drawing.note(3.3, 3.0, "residual")
    figures.show(drawing.figure, "Step 2: the decoder, with the memory and residual lines")


def two_words(parts: Mapping[str, ArrayLike]) -> None:
    """Draws two words through one head of attention, in numbers.

    Args:
        parts: The matrices X, Q, K, V, products, weights and new.
    """
    drawing = Diagram(3.7, "Two words through one head of attention (row 1: he, row 2: sleeps)")
    x = drawing.matrix(1.05, 1.7, parts["X"], "X, the words (2, 4)", fill="yellow")
    q = drawing.matrix(3.1, 2.9, parts["Q"], "Q = X W_Q (2, 2)")
    k = drawing.matrix(3.1, 1.7, parts["K"], "K = X W_K (2, 2)")
    v = drawing.matrix(3.1, 0.5, parts["V"], "V = X W_V (2, 2)")
    scores = drawing.matrix(4.85, 2.3, parts["products"], "Q Kᵀ (2, 2)", fill="orange")
    shares = drawing.matrix(6.55, 2.3, parts["weights"], "softmax(Q Kᵀ / √2)", fill="orange")
    result = drawing.matrix(8.2, 1.1, parts["new"], "weights · V (2, 2)", fill="green")
    pairs = [(x, q), (x, k), (x, v), (q, scores), (k, scores), (scores, shares)]
    for begin, end in [*pairs, (shares, result), (v, result)]:
        drawing.arrow(begin, end, sideways=True)
    figures.show(
        drawing.figure, "Two words through query, key, value, scores, softmax and sum, in numbers"
    )


def positions(table: Tensor, places: Sequence[int]) -> None:
    """Draws position vectors (places, components), and the dot products of some with others."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(figures.PAGE, 3.8), width_ratios=[1.25, 1])
    figures.heat_map(
        left, table.numpy(), x="component", y="position", bar="value", limits=(-1, 1),
        colours="RdBu_r",
    )  # fmt: skip
    left.set_title(f"Sinusoidal positions, E = {table.shape[1]}")
    distances = np.arange(-40, 41)
    for place, width in zip(places, (3, 1), strict=True):
        products = [(table[place] @ table[place + k]).item() for k in distances]
        right.plot(distances, products, linewidth=width, label=f"p = {place}")
    right.set(
        title=r"$P_p \cdot P_{p+k}$ depends on k alone",
        xlabel="distance k (places)",
        ylabel="dot product",
    )
    right.legend()
    figures.show(figure, "Sinusoidal positions and their dot products")


def moves(by_kind: Mapping[str, Sequence[float]], words: Sequence[str]) -> None:
    """Draws how far the vector of each word moves, without and with positions."""
    figure, axis = plt.subplots(figsize=(figures.PAGE, 2.8))
    for offset, (name, heights) in zip((-0.18, 0.18), by_kind.items(), strict=True):
        bars = axis.bar(np.arange(len(words)) + offset, heights, width=0.34, label=name)
        axis.bar_label(bars, fmt="%.2f", fontsize=9)
    axis.set_xticks(range(len(words)), words)
    axis.grid(axis="x", visible=False)
    axis.margins(y=0.15)
    axis.set(
        title="北京到上海 or 上海到北京: how far the vector of each word moves",
        xlabel="word",
        ylabel="distance",
    )
    axis.legend()
    figures.show(figure, "How far the words of a trip move when it is turned round")


def masks(drawn: Sequence[tuple[str, Tensor, Sequence[str], Sequence[str]]]) -> None:
    """Draws masks.

    Args:
        drawn: For each mask its title, the mask (queries, keys), the keys, and the queries.
    """
    figure, axes = plt.subplots(1, len(drawn), figsize=(figures.PAGE, 3.7))
    for axis, (title, mask, columns, rows) in zip(axes, drawn, strict=True):
        figures.heat_map(
            axis, mask.numpy(), x="key", y="query", bar="", columns=columns, rows=rows,
            limits=(0, 1.4), colours="Blues",
        )  # fmt: skip
        axis.set_title(title)
        axis.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
        axis.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
        axis.grid(True, which="minor", color="white", linewidth=2)
        axis.tick_params(which="minor", length=0)
        axis.tick_params(axis="x", which="major", rotation=0, labelsize=8)
    figure.suptitle("Who may attend where (dark: yes)")
    figures.show(figure, "The three masks")


def smoothing(
    targets: Tensor,
    sure: Tensor,
    curves: Mapping[float, Tensor],
    rates: Mapping[str, Sequence[float]],
) -> None:
    """Draws smoothed targets, the loss of a sure answer, and learning rates with warm-up.

    Args:
        targets: (places, words), the smoothed targets.
        sure: The logits of the right word.
        curves: By the amount of smoothing, the loss at each of these logits.
        rates: By name, the learning rate at every 20th step.
    """
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(figures.PAGE, 3.5))
    figures.heat_map(
        left, targets.numpy(), x="word of the vocabulary", y="place in the sentence",
        bar="target probability", columns=[str(number) for number in range(targets.shape[1])],
        rows=[str(number + 1) for number in range(len(targets))], limits=(0, 1),
    )  # fmt: skip
    for (row, column), value in np.ndenumerate(targets.numpy()):
        colour = "black" if value > 0.5 else "white"
        left.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour)
    left.set_title("Smoothed targets (ε = 0.1)")
    for epsilon, losses in curves.items():
        middle.plot(sure, losses, label=f"ε = {epsilon:g}")
    middle.set(title="What certainty costs", xlabel="logit of the right word", ylabel="loss (nats)")
    middle.legend()
    for name, found in rates.items():
        right.plot(range(1, 20 * len(found), 20), 1000 * np.array(found), label=name)
    right.set(title="Learning rate with warm-up", xlabel="step", ylabel="rate (thousandths)")
    right.set_xticks([0, 10_000, 20_000])
    right.legend(fontsize=8)
    figures.show(figure, "Smoothed targets, their loss, and the learning rate with warm-up")


def normalised(people: Tensor, by_column: Tensor, by_row: Tensor) -> None:
    """Draws three people with three numbers, normalised in two ways."""
    drawing = Diagram(2.1, "Rows: Ann, Bo, Cy. Columns: height (cm), weight (kg), age (years)")
    drawing.matrix(1.3, 0.8, people, "as measured", fill="yellow")
    drawing.matrix(4.4, 0.8, by_column, "batch norm: each column has mean 0")
    drawing.matrix(7.6, 0.8, by_row, "layer norm: each row has mean 0", fill="green")
    figures.show(drawing.figure, "Height, weight and age under batch and layer normalisation")


def norm_positions(
    depths: Sequence[int],
    gradients: Mapping[str, Sequence[float]],
    losses: Mapping[str, Sequence[float]],
) -> None:
    """Draws gradients by depth, and losses of the copy task by step, for both norm positions."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(figures.PAGE, 3.6))
    for name in gradients:
        left.plot(depths, gradients[name], marker="o", markersize=4, label=name)
        right.plot(range(1, len(losses[name]) + 1), losses[name], linewidth=1, label=name)
    left.set(
        title="Before training: gradient of the last block",
        xlabel="blocks of the stack",
        ylabel="norm of the gradient",
        ylim=(0, None),
    )
    left.set_xscale("log", base=2)
    left.set_xticks(depths, [str(depth) for depth in depths])
    left.legend()
    right.set(
        title="Copy task without warm-up",
        xlabel="step",
        ylabel="cross-entropy (nats per token)",
        ylim=(0, None),
    )
    right.legend()
    figures.show(figure, "Pre-norm and post-norm: gradient before training, loss of the copy task")


def copying(attention: Tensor, names: Sequence[str]) -> None:
    """Draws the cross-attention (heads, written, read) of the copy task."""
    figure, axes = plt.subplots(1, len(attention), figsize=(figures.PAGE, 2.9), sharey=True)
    for head, axis in enumerate(axes):
        figures.heat_map(
            axis, attention[head].numpy(), x="read", y="written" if head == 0 else " ", bar="",
            columns=names, rows=names, limits=(0, 1),
        )  # fmt: skip
        axis.tick_params(labelsize=8)
        axis.set_title(f"head {head}")
    figure.colorbar(axes[0].images[0], ax=axes, label="attention weight", shrink=0.8)
    figure.suptitle("Cross-attention of the last block, copying eight numbers")
    figures.show(figure, "Cross-attention while copying")


def bleu(networks: Mapping[str, Mapping[int, float]], tests: int) -> None:
    """Draws BLEU of networks, by the number of beams."""
    figure, axis = plt.subplots(figsize=(figures.PAGE, 3.2))
    for offset, (name, beams) in zip((-0.18, 0.18), (("greedy", 1), ("4 beams", 4)), strict=True):
        heights = [found[beams] for found in networks.values()]
        bars = axis.bar(np.arange(len(networks)) + offset, heights, width=0.34, label=name)
        axis.bar_label(bars, fmt="%.1f", fontsize=9)
    axis.set_xticks(range(len(networks)), list(networks))
    axis.grid(axis="x", visible=False)
    axis.set(
        title=f"Chinese → English, {tests} short sentences that were not trained on",
        xlabel="network",
        ylabel="BLEU (0 to 100)",
    )
    axis.legend()
    figures.show(figure, "BLEU of the recurrent network and of the Transformer")


def translation(
    losses: Sequence[float], weights: Tensor, read: Sequence[str], written: Sequence[str]
) -> None:
    """Draws the smoothed training loss, and cross-attention weights (written, read)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(figures.PAGE, 4.0), width_ratios=[1, 1.1])
    left.plot(range(1, len(losses) + 1), losses)
    left.set(
        title="Loss with label smoothing",
        xlabel="step (batches of 32 pairs)",
        ylabel="loss (nats per word)",
    )
    figures.heat_map(
        right, weights.numpy(), x="read (Chinese)", y="written (English)", bar="attention weight",
        columns=read, rows=written,
    )  # fmt: skip
    right.tick_params(axis="x", rotation=0)
    right.set_title("Cross-attention, mean of the heads")
    figures.show(figure, "Training loss and cross-attention of the translation")


def families(rows: Sequence[tuple[str, str, Sequence[Tensor], str]]) -> None:
    """Draws families of networks.

    Args:
        rows: For each family its name, its input, its masks (4, 4), and its output. There is one
            mask, or there are those of the encoder, of the cross-attention and of the decoder.
    """
    drawing = Diagram(4.7, "Four families: what goes in, who may attend where, what comes out")
    for column, (name, given, allowed_of, made) in enumerate(rows):
        x = 1.15 + 2.25 * column
        reads = drawing.box(x, 0.35, given, width=1.8, fill="yellow")
        body = drawing.box(x, 2.05, "", width=2.05, height=2.2, fill="grey")
        ends = drawing.box(x, 3.75, made, width=1.8, height=0.5, fill="green")
        drawing.chain([reads, body, ends])
        drawing.note(x - 0.95, 4.25, name)
        # One mask in the middle; of three, the encoder's below, the decoder's two above.
        corners = [(x - 0.32, 1.3), (x - 0.9, 2.32), (x + 0.26, 2.32)]
        names = ["encoder", "cross", "past"]
        if len(allowed_of) == 1:
            corners, names = [(x - 0.32, 1.8)], ["to itself"]
        for (left, low), called, mask in zip(corners, names, allowed_of, strict=True):
            for (row, place), allowed in np.ndenumerate(mask.numpy()):
                at = left + 0.16 * place + 0.08, low + 0.16 * (3 - row) + 0.08
                drawing.box(*at, "", width=0.16, height=0.16, fill="orange" if allowed else "grey")
            drawing.note(left + 0.08, low - 0.14, called)
    figures.show(
        drawing.figure, "Four families: what goes in, who may attend where, what comes out"
    )
