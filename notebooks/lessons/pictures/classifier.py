"""Pictures of lesson 2: attention in classifiers of sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from .. import figures
from ..diagram import Diagram


def network(size: int, heads: int) -> None:
    """Draws the classifier with self-attention, from the words to two scores.

    Args:
        size: Numbers for each word.
        heads: Heads of the attention.
    """
    drawing = Diagram(
        5.9, "From words to a judgment: one layer of self-attention, read by one more query"
    )
    words = drawing.box(4.5, 0.3, "words (B, S): the film is not bad", width=3.2, fill="yellow")
    vectors = drawing.box(4.5, 0.95, f"a vector for each word (B, S, {size})", width=4.2)
    parts = [
        drawing.box(x, 1.75, f"{name} (B, {heads}, S, {size // heads})", width=2.2)
        for x, name in ((1.5, "queries"), (4.5, "keys"), (7.5, "values"))
    ]
    weigh = f"scores + distances, softmax: (B, {heads}, S, S)"
    scores = drawing.box(2.9, 2.5, weigh, width=3.3, fill="orange")
    reads = f"weights · values, heads joined (B, S, {size})"
    read = drawing.box(4.5, 3.25, reads, width=3.6, fill="orange")
    norm = drawing.box(4.5, 3.9, f"+ what went in, norm (B, S, {size})", width=3.2, fill="green")
    reader = drawing.box(1.5, 4.6, f"a learned query ({size})", width=2.0)
    sums = f"weights β (B, S), sum: (B, {size})"
    sentence = drawing.box(4.5, 4.6, sums, width=3.0, fill="orange")
    judged = drawing.box(7.6, 4.6, "negative, positive (B, 2)", width=2.2, fill="yellow")
    drawing.arrow(words, vectors)
    for part in parts:
        drawing.arrow(vectors, part)
    for begin, end in ((parts[0], scores), (parts[1], scores), (scores, read), (parts[2], read)):
        drawing.arrow(begin, end)
    for begin, end in ((read, norm), (norm, sentence), (reader, sentence), (sentence, judged)):
        drawing.arrow(begin, end)
    drawing.path([(6.6, 0.95), (8.8, 0.95), (8.8, 3.9), (6.1, 3.9)])
    figures.show(
        drawing.figure,
        "The classifier: words, queries, keys and values, weights, and one more query that reads",
    )


def three_queries(size: int) -> None:
    """Draws a recurrent network whose states are keys and values, and three choices of the query.

    Args:
        size: Numbers of a state.
    """
    drawing = Diagram(4.3, "Who asks? Three queries for the same states")
    states = []
    for place, word in enumerate(("the", "film", "is", "not", "bad")):
        x = 0.9 + 1.25 * place
        read = drawing.box(x, 0.35, word, width=0.9, fill="yellow")
        states.append(drawing.box(x, 1.2, f"state\n{size}", width=0.95, height=0.5))
        drawing.arrow(read, states[-1])
    for left, right in pairwise(states):
        drawing.arrow(left, right)
        drawing.arrow(right, left)
    weigh = drawing.box(3.4, 2.3, "weights: softmax of q · state", width=3.4, fill="orange")
    total = drawing.box(3.4, 3.15, f"sentence: weighted sum of the states, {size}", width=3.6)
    judged = drawing.box(3.4, 3.95, "negative, positive", width=2.2, fill="green")
    for state in states:
        drawing.arrow(state, weigh)
    drawing.chain([weigh, total, judged])
    for y, text in (
        (1.2, "q = last state"),
        (1.85, "q = mean of the states"),
        (2.5, "q = learned"),
    ):
        query = drawing.box(7.7, y, text, width=2.0, fill="yellow")
        drawing.arrow(query, weigh, sideways=True)
    figures.show(drawing.figure, "A recurrent network's states, read by one of three queries")


def steps(x: Tensor, scores: Tensor, weights: Tensor, output: Tensor, words: Sequence[str]) -> None:
    """Draws the four matrices of one self-attention, (words, components) or (words, words)."""
    figure, axes = plt.subplots(1, 4, figsize=(figures.PAGE, 2.9), width_ratios=[1.6, 1, 1, 1.6])
    parts = (
        (x, "vectors x", "component", None, "RdBu_r"),
        (scores, r"scores $QK^\top/\sqrt{d}$", "key of", words, "RdBu_r"),
        (weights, "weights (softmax)", "key of", words, "viridis"),
        (output, "output = weights · V", "component", None, "RdBu_r"),
    )
    for axis, (values, title, name, columns, colours) in zip(axes, parts, strict=True):
        edge = values.abs().max().item()
        limits = (-edge, edge) if colours == "RdBu_r" else (0, edge)
        figures.heat_map(
            axis, values.numpy(), x=name, y="word", bar="", columns=columns, rows=words,
            limits=limits, colours=colours,
        )  # fmt: skip
        axis.set_title(title)
    figure.suptitle("Self-attention of five words, before training (red: positive, blue: negative)")
    figures.show(figure, "Vectors, scores, weights and output of self-attention of five words")


def accuracies(scores: Mapping[str, float], tests: int) -> None:
    """Draws accuracies, 0 to 1, with the standard error of so many test sentences."""
    figure, axis = plt.subplots(figsize=(figures.PAGE, 0.9 + 0.42 * len(scores)))
    percent = 100 * np.array(list(scores.values()))
    spread = np.sqrt(percent * (100 - percent) / tests)  # of so many yes-or-no answers
    bars = axis.barh(list(scores), percent, height=0.6, xerr=spread, capsize=3)
    named = [f"{value:.1f} ± {error:.1f}" for value, error in zip(percent, spread, strict=True)]
    axis.bar_label(bars, named, padding=4)
    axis.invert_yaxis()
    axis.set_xlim(0, 100)
    axis.grid(axis="y", visible=False)
    axis.set(
        title=f"Sentiment of {tests:,} test sentences", xlabel="accuracy (%)", ylabel="classifier"
    )
    figures.show(figure, f"Accuracy of {len(scores)} sentiment classifiers")


def negated(shares: Mapping[str, Sequence[np.ndarray]], groups: Sequence[str]) -> None:
    """Draws the share of correct sentences by group, mean of the seeds, minimum and maximum.

    Args:
        shares: By classifier, for each group the percentages of the seeds.
        groups: The names of the groups.
    """
    figure, axis = plt.subplots(figsize=(figures.PAGE, 3.6))
    for offset, (name, values) in zip((-0.2, 0.2), shares.items(), strict=True):
        places, means = np.arange(len(groups)) + offset, np.array([v.mean() for v in values])
        spread = [means - [v.min() for v in values], [v.max() for v in values] - means]
        axis.bar(places, means, width=0.38, label=name)
        axis.errorbar(places, means, yerr=spread, fmt="none", color="#444444", capsize=4)
        for place, mean in zip(places, means, strict=True):
            axis.text(place, 4, f"{mean:.0f}", ha="center", color="white", fontsize=11)
    axis.axhline(50, color="black", linestyle="--", linewidth=1, label="a coin")
    axis.set_xticks(range(len(groups)), groups)
    axis.grid(axis="x", visible=False)
    axis.set(
        title="Correct test sentences (bar: mean of the seeds; line: minimum to maximum)",
        xlabel="group (number of sentences)",
        ylabel="correct (%)",
        ylim=(0, 112),
    )
    axis.legend(ncols=3, loc="upper center")
    figures.show(figure, "Correct sentences with and without a negation, by mean and attention")


def heads(weights: np.ndarray, words: Sequence[str], title: str) -> None:
    """Draws the attention of four heads, (4, words, words), two in a row."""
    figure, axes = plt.subplots(2, 2, figsize=(figures.PAGE, 7.2), sharex=True, sharey=True)
    for number, (axis, head) in enumerate(zip(axes.flat, weights, strict=True)):
        figures.heat_map(
            axis, head, x="key" if number > 1 else " ", y=" " if number % 2 else "query", bar="",
            columns=words, rows=words, limits=(0, 1),
        )  # fmt: skip
        for (row, column), value in np.ndenumerate(head):
            colour = "black" if value > 0.6 else "white"
            if value >= 0.05:
                text = f"{value:.1f}".lstrip("0")
                axis.text(column, row, text, ha="center", va="center", color=colour)
        axis.set_title(f"head {number}")
    figure.suptitle(title)
    figures.show(figure, "Attention of four heads on a sentence with negations")


def reach(by_distance: ArrayLike, distances: Sequence[int]) -> None:
    """Draws the mean weight of each head by distance, (heads, distances)."""
    figure, axis = plt.subplots(figsize=(figures.PAGE, 2.8))
    for number, (row, marker) in enumerate(zip(np.asarray(by_distance), "os^D", strict=False)):
        axis.plot(distances, 100 * row, marker=marker, label=f"head {number}")
    axis.set_xticks(distances)
    axis.set(
        title="Mean weight by distance, over test sentences",
        xlabel="place of the key minus place of the query (negative: to the left)",
        ylabel="weight (%)",
        ylim=(0, None),
    )
    axis.legend(ncols=4)
    figures.show(figure, "Mean attention weight of each head by distance")


def queries_read(weights: Mapping[str, Sequence[float]], words: Sequence[str]) -> None:
    """Draws the weights that each query gives to the words of a sentence."""
    figure, axis = plt.subplots(figsize=(figures.PAGE, 2.4))
    table = np.array(list(weights.values()))
    figures.heat_map(
        axis, table, x="word", y="query", bar="weight (sum 1)", columns=words, rows=list(weights),
        limits=(0, float(table.max())), colours="Oranges",
    )  # fmt: skip
    for (row, column), value in np.ndenumerate(table):
        colour = "white" if value > 0.7 * table.max() else "black"
        axis.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=8)
    axis.set_title("Which states the three queries read")
    figures.show(figure, "Weights of three queries on the states of one sentence")


def words_read(
    rows: Sequence[tuple[Sequence[str], np.ndarray, float]], polarity: Mapping[str, float]
) -> None:
    """Draws sentences with the weight of each word.

    Args:
        rows: For each sentence its words, their weights, and the probability of "positive".
        polarity: The polarity of frequent words, written below them.
    """
    figure, axes = plt.subplots(len(rows), 1, figsize=(figures.PAGE, 0.85 * len(rows) + 0.9))
    longest = max(len(words) for words, _, _ in rows)
    for axis, (words, read, positive) in zip(axes, rows, strict=True):
        row = np.full((1, longest), np.nan)
        row[0, : len(words)] = read
        axis.imshow(row, cmap="Oranges", vmin=0, vmax=0.6, aspect="auto")
        for place, word in enumerate(words):
            label = f"{word}\n{polarity[word]:+.1f}" if word in polarity else f"{word}\n–"
            colour = "white" if read[place] > 0.4 else "black"
            axis.text(place, 0, label, ha="center", va="center", fontsize=8, color=colour)
        axis.set_axis_off()
        axis.set_title(f"positive: {positive:.2f}", fontsize=9, loc="left")
    figure.suptitle("What the classifier reads; below each word its polarity (–: rare)")
    figure.colorbar(axes[0].images[0], ax=axes, label="weight β (sum 1)", shrink=0.8)
    figures.show(figure, "How much of each word of five sentences is read")


def by_polarity(groups: Sequence[float], edges: Sequence[float], words: int) -> None:
    """Draws the mean weight of words, as a multiple of an even share, by their polarity.

    Args:
        groups: The mean of each group.
        edges: The edges of the groups, one more than groups.
        words: The number of words.
    """
    figure, axis = plt.subplots(figsize=(figures.PAGE, 3.2))
    bars = axis.bar(
        [f"{low:.2f} to {high:.2f}" for low, high in pairwise(edges)], groups, width=0.6
    )
    axis.bar_label(bars, fmt="%.2f")
    axis.axhline(1, color="#999999", linestyle="--", linewidth=1)
    axis.grid(axis="x", visible=False)
    axis.set(
        title=f"Weight of words by the strength of their polarity ({words:,} words of the test)",
        xlabel="strength of the word's polarity |log-ratio|, in quarters of all words",
        ylabel="weight / even share",
    )
    figures.show(figure, "Weight of words against the strength of their polarity")
