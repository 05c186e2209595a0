"""Pictures of lesson 5: BERT in practice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from .. import figures
from ..diagram import Diagram


def text_to_answers(
    width: int, feed_forward: int, layers: int, heads: int, vocabulary: int
) -> None:
    """Draws the path from a text to the answers of four heads, with the sizes of a checkpoint."""
    drawing = Diagram(6.1, f"The BERT of this notebook: {layers} layers of width {width}")
    drawing.box(4.5, 3.05, "", width=5.2, height=1.5, fill="grey")
    drawing.note(2.0, 3.63, f"{layers} times")
    attention = f"self-attention, {heads} heads of {width // heads}; +, norm"
    chain = [
        drawing.box(x=4.5, y=y, text=text, width=box_width, fill=fill)
        for y, text, box_width, fill in (
            (0.3, "text: “He sat by the bank.”", 2.6, "yellow"),
            (0.95, "tokenizer: numbers (B, S), the first is [CLS]", 3.8, "yellow"),
            (1.75, f"token + position + segment, norm: (B, S, {width})", 3.8, "blue"),
            (2.65, attention, 3.8, "orange"),
            (3.35, f"feed-forward {width} → {feed_forward} → {width}; +, norm", 3.8, "green"),
            (4.2, f"states (B, S, {width}), one for each token", 3.4, "yellow"),
        )
    ]
    drawing.chain(chain)
    for x, head, answer in (
        (1.15, "first state, tanh, linear", "class (B, labels)"),
        (3.4, "linear, each state", "tags (B, S, labels)"),
        (5.6, f"{width} → 2, each state", "start, end (B, S)"),
        (7.85, f"{width} → {vocabulary:,}", "hidden word"),
    ):
        top = drawing.box(x, 5.0, head, width=2.05, height=0.34)
        drawing.arrow(chain[-1], top)
        drawing.arrow(top, drawing.box(x, 5.6, answer, width=1.8, height=0.34, fill="yellow"))
    figures.show(drawing.figure, "From a text to the answers of four heads, with MiniLM's sizes")


def senses(
    vectors: Tensor, labels: Sequence[str], within: Sequence[float], between: Sequence[float]
) -> None:
    """Draws the vectors of one word at the input and after the last layer, and their similarity.

    Args:
        vectors: (layers + 1, sentences, width).
        labels: The sense of the word in each sentence.
        within: By layer, the mean cosine of two vectors of the same sense.
        between: By layer, that of different senses.
    """
    figure, axes = plt.subplots(1, 3, figsize=(figures.PAGE, 4.1))
    last = len(vectors) - 1
    for axis, layer, name in ((axes[0], 0, "embeddings"), (axes[1], last, f"layer {last}")):
        centred = vectors[layer] - vectors[layer].mean(dim=0)
        u, s, _ = torch.linalg.svd(centred, full_matrices=False)
        plane = u[:, :2] * s[:2]  # (sentences, 2)
        share = (s[:2].square().sum() / s.square().sum()).item()
        # Sentences with the word at the same position share one embedding. Markers of different
        # sizes keep all senses visible, and a number counts the sentences.
        kinds = zip(dict.fromkeys(labels), "os^", (170, 75, 22), figures.COLOURS, strict=False)
        for sense, marker, size, colour in kinds:
            chosen = [label == sense for label in labels]
            axis.scatter(
                *plane[chosen].T, marker=marker, s=size, label=sense,
                facecolors="none", edgecolors=colour, linewidths=1.4,
            )  # fmt: skip
        for place, count in Counter((round(x, 3), round(y, 3)) for x, y in plane.tolist()).items():
            if count > 1:
                axis.annotate(str(count), place, (8, 4), "data", "offset points", fontsize=9)
        axis.margins(0.15)
        axis.set(xlabel="first component", ylabel="second component")
        axis.set_title(f"{name} ({share:.0%} of the variance)")
    axes[2].plot(within, marker="o", color="black", label="same sense")
    axes[2].plot(between, marker="s", color="#777777", label="different senses")
    axes[2].set(xlabel="layer", ylabel="mean cosine", ylim=(0, 1.02), title="similarity")
    axes[2].set_xticks(range(len(vectors)))
    axes[2].legend(fontsize=9)
    handles, names = axes[0].get_legend_handles_labels()
    legend = figure.legend(handles, names, loc="outside lower center", ncols=3)
    legend.set_title("sense of “bank” in both pictures on the left")
    figure.suptitle(f"The vectors of “bank” in {len(labels)} sentences")
    figures.show(
        figure, "The vectors of bank in fifteen sentences, at the input and after the last layer"
    )


def answer_span(tokens: Sequence[str], first: int, last: int, parts: Mapping[str, int]) -> None:
    """Draws the tokens of a question and a text, with the answer in orange.

    Args:
        tokens: All tokens of the input.
        first: The place of the answer's first token.
        last: The place of its last token.
        parts: The number of tokens of each part, by its name, in order.
    """
    drawing = Diagram(2.1, "One input: a question, a text, and the answer as a span")
    x, place = 0.15, 0
    for name, count in parts.items():
        begin = x
        for token in tokens[place : place + count]:
            width = 0.26 + 0.075 * len(token)
            fill = "orange" if first <= place <= last else "yellow"
            drawing.box(x + width / 2, 1.0, token, width=width, height=0.36, fill=fill)
            drawing.note(x + width / 2 - 0.08, 0.65, str(place))
            x, place = x + width + 0.04, place + 1
        drawing.path([(x - 0.04, 1.35), (begin, 1.35)])
        drawing.note(begin, 1.55, name)
    figures.show(drawing.figure, "The tokens of a question and a text, with the answer's span")
