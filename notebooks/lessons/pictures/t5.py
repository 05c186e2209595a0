"""Pictures of lesson 13: T5."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from .. import figures
from ..diagram import Diagram
from ..span_corruption import corrupt


def reading(size: int, hidden: int, blocks: int) -> None:
    """Draws the first step: the encoder reads a text with its prefix."""
    drawing = Diagram(5.2, "Step 1: the encoder reads the prefix and the text", width=6)
    drawing.box(3, 2.9, "", width=3.8, height=1.9, fill="grey")
    drawing.note(1.2, 3.7, f"{blocks} blocks")
    text = drawing.box(3, 0.3, "“question type : where is rome ?”", width=3.6, fill="yellow")
    tokens = drawing.box(3, 1.0, "token numbers (B, S)", width=3.2, fill="yellow")
    vectors = drawing.box(3, 1.65, f"token vectors (B, S, {size})", width=3.2)
    looks = drawing.box(3, 2.55, "norm, self-attention, + input", width=3.2, fill="orange")
    feed = f"norm, {size} → {hidden} → {size}, + input"
    feeds = drawing.box(3, 3.25, feed, width=3.2, fill="green")
    memory = drawing.box(3, 4.3, f"norm: memory (B, S, {size})", width=3.2, fill="yellow")
    drawing.chain([text, tokens, vectors, looks, feeds, memory])
    figures.show(drawing.figure, "Step 1: the encoder turns the prefix and the text into a memory")


def writing(size: int, hidden: int, blocks: int) -> None:
    """Draws the second step: the decoder writes the answer, token by token."""
    drawing = Diagram(6.1, "Step 2: the decoder writes the answer", width=7.5)
    drawing.box(4.6, 3.0, "", width=4.2, height=2.6, fill="grey")
    drawing.note(2.6, 4.15, f"{blocks} blocks")
    answer = drawing.box(4.6, 0.3, "BEGIN, and the tokens written so far", width=3.6, fill="yellow")
    vectors = drawing.box(4.6, 1.05, f"token vectors (B, T, {size})", width=3.6)
    past = drawing.box(4.6, 2.1, "norm, attention to the past, + input", width=3.6, fill="orange")
    cross = drawing.box(4.6, 2.9, "norm, cross-attention, + input", width=3.6, fill="orange")
    feed = f"norm, {size} → {hidden} → {size}, + input"
    feeds = drawing.box(4.6, 3.7, feed, width=3.6, fill="green")
    scores = drawing.box(4.6, 4.75, f"norm, times the token matrix, {size} → V", width=3.6)
    ends = drawing.box(4.6, 5.5, "scores of the next token (B, T, V)", width=3.6, fill="yellow")
    memory = drawing.box(1.1, 2.9, "the encoder's\nmemory", width=1.5, height=0.6, fill="yellow")
    drawing.chain([answer, vectors, past, cross, feeds, scores, ends])
    drawing.arrow(memory, cross, sideways=True)
    drawing.note(0.4, 3.4, "keys and values")
    figures.show(drawing.figure, "Step 2: the decoder reads the memory and writes the answer")


def distance_numbers(heads: int) -> None:
    """Draws the third step: a number for each distance is added to the score of a pair."""
    drawing = Diagram(2.7, "Step 3: order comes from distances, inside each attention", width=8)
    pair = drawing.box(
        1.3, 1.9, "query of position 5,\nkey of position 3", height=0.6, fill="yellow"
    )
    product = drawing.box(4.0, 1.9, "dot product q · k", width=1.9, fill="orange")
    apart = drawing.box(1.3, 0.6, "distance 3 - 5 = -2", width=2.0, fill="yellow")
    table = drawing.box(4.0, 0.6, f"table: 32 buckets,\n{heads} heads", width=1.9, height=0.6)
    total = drawing.box(6.7, 1.25, "sum, then softmax", width=1.9, fill="green")
    drawing.chain([pair, product, total])
    drawing.chain([apart, table, total])
    figures.show(drawing.figure, "Step 3: a learned number of the distance is added to each score")


def buckets(numbers: Callable[[bool], Tensor], distances: Tensor) -> None:
    """Draws the bucket of each distance.

    Args:
        numbers: From True for the encoder, False for the decoder, to the buckets.
        distances: Those to draw.
    """
    figure, axes = plt.subplots(1, 2, figsize=(figures.PAGE, 3.0), sharey=True)
    for axis, name in zip(axes, ("encoder", "decoder"), strict=True):
        axis.step(distances, numbers(name == "encoder"), where="mid")
        axis.set(title=name, xlabel="distance (tokens, negative: to the left)", ylabel="bucket")
    figure.suptitle("Which of the 32 learned numbers a distance gets")
    figures.show(figure, "Which of the learned numbers a distance gets, in encoder and decoder")


def spans(shown: Sequence[tuple[str, Sequence[str], Sequence[tuple[int, int]]]]) -> None:
    """Draws texts with the spans to cut out.

    Args:
        shown: For each text its name, its words, and the beginnings and ends of the spans.
    """
    drawing = Diagram(
        4.9, "Spans are cut out (orange); the encoder reads the rest, the decoder writes them"
    )
    for row, (name, words, cuts) in enumerate(shown):
        y, x = 4.15 - 1.2 * row, 0.1
        cut = [number for begin, end in cuts for number in range(begin, end)]
        drawing.note(x, y + 0.32, name)
        for number, word in enumerate(words):
            width = 0.17 + 0.075 * len(word)
            fill = "orange" if number in cut else "yellow"
            drawing.box(x + width / 2, y, word, width=width, height=0.28, fill=fill)
            x += width + 0.03
        read, missing = corrupt(words, cuts)
        drawing.note(0.1, y - 0.3, f"reads:   {' '.join(read)}")
        drawing.note(0.1, y - 0.52, f"writes:  {' '.join(missing)}")
    figures.show(drawing.figure, "Spans cut out of texts, what is read and what is written")


def results(
    losses: Sequence[float], accuracy: Mapping[str, float], bleu: Mapping[str, float]
) -> None:
    """Draws the training loss, accuracies (0 to 1) and BLEU (0 to 100)."""
    figure, (left, middle, last) = plt.subplots(
        1, 3, figsize=(figures.PAGE, 3.2), width_ratios=[1.3, 1.1, 0.9]
    )
    span = min(50, len(losses))
    left.plot(range(span, len(losses) + 1), np.convolve(losses, np.ones(span) / span, "valid"))
    left.set(
        title=f"Training loss, mean of {span} steps",
        xlabel="step (batches of 48 texts)",
        ylabel="smoothed loss (nats per token)",
        ylim=(0, None),
    )
    percent = {name: 100 * share for name, share in accuracy.items()}
    for axis, heights, title, x, y in (
        (middle, percent, "Question type", "classifier", "accuracy (%)"),
        (last, bleu, "Chinese → English", "scored against", "BLEU (0 to 100)"),
    ):
        names = [name.replace(" ", "\n", 1) for name in heights]
        bars = axis.bar(names, list(heights.values()), width=0.6)
        axis.bar_label(bars, fmt="%.1f", fontsize=9)
        axis.grid(axis="x", visible=False)
        axis.tick_params(axis="x", labelsize=8)
        axis.margins(y=0.12)
        axis.set(title=title, xlabel=x, ylabel=y)
    figures.show(figure, "Training loss of three tasks, accuracy of question types, BLEU")


def learned_distances(bias: Tensor, distances: Sequence[int]) -> None:
    """Draws the numbers (heads, distances) that each head adds to its scores."""
    figure, axis = plt.subplots(figsize=(figures.PAGE, 2.6))
    edge = bias.abs().max().item()
    figures.heat_map(
        axis, bias.numpy(), x="distance from the query (negative: to the left)",
        y="head", bar="added to the score", columns=[str(number) for number in distances],
        rows=[str(head) for head in range(len(bias))], limits=(-edge, edge), colours="RdBu_r",
    )  # fmt: skip
    axis.tick_params(axis="x", rotation=0)
    axis.set_title("What each head of the encoder adds by distance, less its mean")
    figures.show(figure, "What each head of the encoder adds by distance")


def by_prefix(shares: ArrayLike, columns: Sequence[str], rows: Sequence[str]) -> None:
    """Draws shares in percent, (texts, kinds of answers)."""
    figure, axis = plt.subplots(figsize=(figures.PAGE, 3.6))
    figures.heat_map(
        axis, shares, x="what is written begins with", y="prefix and text",
        bar="share of the texts (%)", columns=columns, rows=rows, limits=(0, 100),
    )  # fmt: skip
    axis.tick_params(axis="x", rotation=0)
    for (row, column), value in np.ndenumerate(np.asarray(shares)):
        colour = "black" if value > 60 else "white"
        axis.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=9, color=colour)
    axis.set_title("One network: what it writes, by prefix and text")
    figures.show(figure, "What is written, by prefix and text")
