"""Pictures of lesson 12: GPT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np

from .. import figures
from ..diagram import Diagram


def two_columns(size: int, heads: int, blocks: int) -> None:
    """Draws GPT-1 and GPT-2 side by side, from the tokens to the scores.

    Args:
        size: Numbers for each token.
        heads: Heads of each attention.
        blocks: Blocks of each network.
    """
    drawing = Diagram(7.3, "One line apart: where GPT-1 and GPT-2 normalise")
    attention = (f"attention to the past, {heads} heads", "orange")
    feed_forward = (f"feed-forward {size} → {4 * size} → {size}", "green")
    plus, norm = ("+", ""), ("norm", "blue")

    def column(x: float, name: str, layers: Sequence[tuple[str, str]], free: str) -> None:
        """A line leads past the layers, from the top of each `free` to "+"."""
        drawing.box(x, 3.1, "", width=3.4, height=3.7, fill="grey")
        drawing.note(x - 1.6, 4.8, f"{blocks} times")
        tokens = drawing.box(x, 0.3, f"{name}: tokens (B, T)", width=2.5, fill="yellow")
        below = drawing.box(x, 0.9, f"token + position (B, T, {size})", width=2.5)
        drawing.arrow(tokens, below)
        y, begin = 1.47, 1.47  # where the line of the next "+" begins
        for text, fill in layers:
            y += 0.5
            if text == "+":
                box = drawing.box(x, y, "+", width=0.4, height=0.3, fill="yellow")
                drawing.path([(x, begin), (x - 1.45, begin), (x - 1.45, y), (x - 0.2, y)])
            else:
                box = drawing.box(x, y, text, width=2.5, height=0.34, fill=fill)
            begin = y + 0.25 if text == free else begin
            drawing.arrow(below, box)
            below = box
        if name == "GPT-2":
            box = drawing.box(x, 5.35, "norm", width=2.5, height=0.34)
            drawing.arrow(below, box)
            below = box
        score = drawing.box(x, 5.95, f"times the token matrix, {size} → V", width=2.5)
        ends = drawing.box(x, 6.6, "scores of the next token (B, T, V)", width=2.6, fill="yellow")
        drawing.chain([below, score, ends])

    column(2.3, "GPT-1", [attention, plus, norm, feed_forward, plus, norm], "norm")
    column(6.7, "GPT-2", [norm, attention, plus, norm, feed_forward, plus], "+")
    figures.show(drawing.figure, "Where GPT-1 and GPT-2 normalise")


def losses(
    curves: Mapping[str, Sequence[float]],
    baselines: Mapping[str, float],
    by_position: Mapping[str, Sequence[float]],
    tests: int,
) -> None:
    """Draws training losses by step, and test losses by the position of the token.

    Args:
        curves: The loss of each step, by network.
        baselines: The test loss of each baseline.
        by_position: The test loss of each position, from the first.
        tests: The number of test sentences.
    """
    span = min(30, *map(len, curves.values()))
    figure, (left, right) = plt.subplots(1, 2, figsize=(figures.PAGE, 3.5), width_ratios=[1.3, 1])
    for name, curve in curves.items():
        window = np.convolve(curve, np.ones(span) / span, mode="valid")
        task = "hidden tokens" if name == "BERT" else "next token"
        left.plot(range(span, len(curve) + 1), window, label=f"{name}: {task}")
    for (name, loss), style in zip(baselines.items(), ("--", ":"), strict=True):
        left.axhline(loss, color="#777777", linestyle=style, linewidth=1.2, label=f"{name} (test)")
    left.set(
        title=f"Training loss, mean of {span} steps",
        xlabel="step (batches of 32 sentences)",
        ylabel="cross-entropy (nats per token)",
    )
    left.legend(fontsize=8)
    for name, found in by_position.items():
        right.plot(range(1, len(found) + 1), found, marker="o", markersize=4, label=name)
    right.set(
        title=f"Test loss by position ({tests} sentences)",
        xlabel="position of the predicted token",
        ylabel="cross-entropy (nats per token)",
        ylim=(0, None),
    )
    right.legend(fontsize=8)
    figures.show(figure, "Training loss of GPT-1, GPT-2 and BERT; test loss by position")


def stream_lengths(streams: Mapping[str, Sequence[float]]) -> None:
    """Draws the mean length of the vectors before the first block and after each block."""
    figure, axis = plt.subplots(figsize=(figures.PAGE, 2.8))
    for name, found in streams.items():
        axis.plot(range(len(found)), found, marker="o", label=name)
        names = ["embeddings", *(f"block {n + 1}" for n in range(len(found) - 1))]
        axis.set_xticks(range(len(found)), names)
    axis.set(
        title="Length of the vectors of a trained network",
        xlabel="after",
        ylabel="mean length",
        ylim=(0, None),
    )
    axis.legend()
    figures.show(figure, "Length of the vectors after each block of GPT-1 and GPT-2")


def next_tokens(
    by_setting: Mapping[str, Sequence[float]], tokens: Sequence[str], beginning: str
) -> None:
    """Draws the probabilities of the most likely tokens, one panel for each setting.

    Args:
        by_setting: The probability of each token.
        tokens: The tokens, the most likely first.
        beginning: The text before them.
    """
    figure, axes = plt.subplots(
        1, len(by_setting), figsize=(figures.PAGE, 3.0), sharex=True, sharey=True
    )
    for axis, (name, found) in zip(axes, by_setting.items(), strict=True):
        axis.barh(tokens, 100 * np.asarray(found), height=0.7)
        axis.set_title(name, fontsize=10)
        axis.grid(axis="y", visible=False)
    axes[0].invert_yaxis()
    figure.supxlabel("probability (%)")
    figure.supylabel("next token")
    figure.suptitle(f"What comes after “{beginning}”: the most likely tokens, by setting")
    figures.show(figure, "The most likely next tokens, by temperature, top-k and top-p")


def cache_times(seconds: Mapping[str, Sequence[float]]) -> None:
    """Draws the time of each further token; a point is the median of 20 tokens."""
    figure, axis = plt.subplots(figsize=(figures.PAGE, 3.0))
    for name, times in seconds.items():
        steps = 1000 * np.median(np.array(times).reshape(-1, 20), axis=1)
        axis.plot(np.arange(10, len(times), 20), steps, marker=".", label=name)
    axis.set(
        title="Time of one more token, two texts at once",
        xlabel="tokens written before",
        ylabel="milliseconds per token",
        ylim=(0, None),
    )
    axis.legend()
    figures.show(figure, "Time of one more token, with and without cached keys and values")


def certainty(probabilities: Sequence[float], tokens: Sequence[str], read: Sequence[str]) -> None:
    """Draws the most likely next token after each token.

    Args:
        probabilities: That of each most likely token.
        tokens: The most likely tokens.
        read: The tokens before them.
    """
    figure, axis = plt.subplots(figsize=(figures.PAGE, 2.6))
    bars = axis.bar(range(len(read)), 100 * np.asarray(probabilities), width=0.6)
    axis.bar_label(bars, tokens, fontsize=9)
    axis.set_xticks(range(len(read)), read)
    axis.set(
        title="How sure the network is of the next token, and which it is",
        xlabel="token read last",
        ylabel="probability (%)",
        ylim=(0, 118),
    )
    axis.grid(axis="x", visible=False)
    figures.show(figure, "The most likely next token after each token of a task about numbers")
