"""Pictures of lesson 6: fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import ArrayLike

from .. import figures
from ..diagram import Diagram


def four_heads(size: int) -> None:
    """Draws one body with four heads.

    Args:
        size: Numbers of a state.
    """
    panels = (  # input, the states that the head reads, answer, head
        (["[CLS]", "a", "fine", "film", "[SEP]"], [0], "a sentence: positive", 2),
        (["[CLS]", "A …", "[SEP]", "B …", "[SEP]"], [0], "a pair: entailment", 3),
        (["[CLS]", "Anna", "saw", "Rome", "[SEP]"], [1, 2, 3], "tags: person, O, location", 13),
        (["[CLS]", "who? …", "[SEP]", "Anna …", "[SEP]"], [0, 3], "spans: first and last word", 2),
    )
    drawing = Diagram(6.0, "One body, four heads: input, states that the head reads, answer")
    for number, (words, read, answer, outputs) in enumerate(panels):
        left, low = 0.1 + 4.5 * (number % 2), 3.05 - 2.95 * (number // 2)
        body = f"BERT, the same body: (B, S) → (B, S, {size})"
        drawing.box(left + 2.15, low + 1.1, body, width=4.2)
        out = drawing.box(left + 2.15, low + 2.4, answer, width=2.9, fill="green")
        for place, word in enumerate(words):
            x = left + 0.47 + 0.84 * place
            drawing.box(x, low + 0.4, word, width=0.76, height=0.36, fill="yellow")
            drawing.path([(x, low + 0.58), (x, low + 0.89)])
            if place in read:
                head = f"{size} → {outputs}"
                state = drawing.box(x, low + 1.7, head, width=0.8, height=0.36, fill="orange")
                drawing.path([(x, low + 1.31), (x, low + 1.52)])
                drawing.arrow(state, out)
    figures.show(drawing.figure, "One body and four heads: a sentence, a pair, tags, spans")


def confusion(
    panels: Sequence[tuple[str, Sequence[str], Sequence[int], Sequence[int]]],
) -> None:
    """Draws confusion matrices.

    Args:
        panels: For each task its title, the classes, and the numbers of the gold and the
            predicted classes.
    """
    figure, axes = plt.subplots(1, len(panels), figsize=(figures.PAGE, 3.9), width_ratios=(1, 1.25))
    for axis, (title, names, gold, predicted) in zip(axes, panels, strict=True):
        counts = np.zeros((len(names), len(names)), int)
        np.add.at(counts, (gold, predicted), 1)
        part = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        figures.heat_map(
            axis, part, x="predicted", y="gold", bar="% of a gold class", rows=names,
            limits=(0, 100), colours="Blues",
        )  # fmt: skip
        axis.set_xticks(range(len(names)), names)
        axis.set_title(title)
        for row, column in np.ndindex(counts.shape):
            colour = "white" if part[row, column] > 55 else "black"
            axis.text(column, row, counts[row, column], ha="center", va="center", color=colour)
    figure.suptitle("Confusion matrices")
    figures.show(figure, "Confusion matrices of sentences and pairs")


def no_answer(
    thresholds: Sequence[float],
    curves: Mapping[str, Sequence[float]],
    tuned: float,
    never: float,
    outcomes: Mapping[str, Mapping[str, int]],
) -> None:
    """Draws F1 by the threshold of the null answer, and the outcome of each question.

    Args:
        thresholds: In logits.
        curves: By kind of question, F1 (0 to 100) at each threshold.
        tuned: The chosen threshold.
        never: F1 of a reader that never answers.
        outcomes: By reader, the number of questions by outcome.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(figures.PAGE, 4))
    for (name, values), style in zip(curves.items(), ("-", "--", ":"), strict=True):
        left.plot(thresholds, values, style, label=name)
    left.axvline(tuned, color="black", linewidth=0.8)
    left.axhline(never, color="#999999", linewidth=0.8)
    left.annotate(
        "never answering", (thresholds[0], never), (2, 3), "data", "offset points", fontsize=8
    )
    left.set(xlabel="threshold τ (logits)", ylabel="F1 (%)", title="F1 by the threshold")
    left.set_ylim(0, 102)
    left.legend(title="questions", fontsize=8, title_fontsize=8)
    kinds = list(next(iter(outcomes.values())))
    places = np.arange(len(kinds))
    for shift, (name, counts) in zip((-0.2, 0.2), outcomes.items(), strict=True):
        bars = right.barh(places + shift, [counts[kind] for kind in kinds], 0.38, label=name)
        right.bar_label(bars, fontsize=8, padding=3)
    right.set_yticks(places, kinds)
    right.legend(fontsize=8)
    right.invert_yaxis()
    right.margins(x=0.12)
    right.grid(axis="y", visible=False)
    right.set(xlabel="questions", ylabel="with or without an answer", title="outcomes")
    figure.suptitle("Answers and “no answer”: SQuAD's questions, each with one sentence")
    figures.show(figure, "F1 by the threshold of the null answer, and the outcome of the questions")


def learning(
    amounts: Sequence[int],
    means: ArrayLike,
    spreads: ArrayLike,
    majority: float,
    seeds: int,
    epochs: Mapping[str, Sequence[tuple[float, float]]],
) -> None:
    """Draws learning curves by data and by epoch, in percent.

    Args:
        amounts: Training sentences.
        means: The accuracy of each amount, mean of the seeds.
        spreads: The standard deviation of each.
        majority: Accuracy of the majority class.
        seeds: Number of seeds.
        epochs: By task, epochs with their scores.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(figures.PAGE, 3.9))
    label = f"fine-tuned MiniLM, mean of {seeds} seeds"
    left.errorbar(amounts, means, yerr=spreads, marker="o", capsize=4, label=label)
    left.axhline(majority, color="#999999", linewidth=1, linestyle=":", label="majority class")
    left.set_xscale("log")
    left.set_xticks(amounts, map(str, amounts))
    left.minorticks_off()
    left.set(xlabel="training sentences", ylabel="accuracy (%)", title="sentences: more data")
    left.legend(fontsize=8)
    for (name, history), marker in zip(epochs.items(), "os^D", strict=True):
        right.plot(*zip(*history, strict=True), marker=marker, label=name)
    right.set_xticks(range(4))
    right.set(
        xlabel="epoch (0: the baseline)",
        ylabel="score on held-out data (%)",
        title="all tasks: more epochs",
    )
    right.set_ylim(0, 102)
    right.legend(fontsize=8)
    figure.suptitle("Learning curves of MiniLM")
    figures.show(figure, "Learning curves by data and by epoch")
