"""Pictures of lesson 7: sentence embeddings."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np

from .. import figures
from ..diagram import Diagram


def two_texts(tokens: Mapping[str, int], width: int, cosine: float) -> None:
    """Draws two texts through one encoder, to the cosine of their vectors.

    Args:
        tokens: The number of tokens by text.
        width: Numbers of a vector.
        cosine: The cosine.
    """
    drawing = Diagram(5.0, "Two texts, one encoder, two vectors, one number")
    drawing.box(4.5, 1.8, "", width=8.6, height=0.62, fill="grey")
    drawing.note(3.8, 1.8, "the same weights")
    total = drawing.box(4.5, 4.15, f"cosine: {cosine:.2f}", width=2.0, fill="yellow")
    for x, (text, count) in zip((2.2, 6.8), tokens.items(), strict=True):
        read = drawing.box(x, 0.3, f"“{text}”", width=2.2, fill="yellow")
        numbers = drawing.box(x, 0.98, f"tokens ({count})", width=1.8, fill="yellow")
        layers = drawing.box(x, 1.8, "the layers of the encoder", width=2.6, fill="orange")
        states = drawing.box(x, 2.6, f"states ({count}, {width})", width=2.0)
        pooled = drawing.box(x, 3.3, f"pooling: ({width})", width=2.0, fill="green")
        drawing.chain([read, numbers, layers, states, pooled, total])
    figures.show(
        drawing.figure, "Two texts through one encoder, pooled to two vectors, and their cosine"
    )


def poolings(scores: Mapping[str, float], gold: np.ndarray, cosines: np.ndarray) -> None:
    """Draws the correlation of each pooling, and the cosines of mean pooling by people's scores."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(figures.PAGE, 3.8), width_ratios=(1, 1.15))
    order = sorted(scores, key=lambda name: scores[name])
    bars = left.barh(order, [scores[name] for name in order], height=0.6)
    left.bar_label(bars, fmt="%.1f", padding=3)
    left.set(xlabel="Spearman correlation (times 100)", ylabel="pooling", title="all pairs")
    left.margins(x=0.18)
    left.grid(axis="y", visible=False)
    image = right.hexbin(gold, cosines, gridsize=22, cmap="viridis", mincnt=1)
    figure.colorbar(image, ax=right, label="pairs")
    right.set(xlabel="score by people", ylabel="cosine of the vectors", title="mean pooling")
    figure.suptitle("Similarity by people and by MiniLM, STS 2014")
    figures.show(figure, "STS by pooling, and cosines against scores by people")


def anisotropy(
    tokens: Mapping[str, Sequence[float]], scores: Mapping[str, Mapping[str, float]]
) -> None:
    """Draws mean cosines of tokens by layer, and correlations by pooling.

    Args:
        tokens: By name, the mean cosine of each layer.
        scores: By remedy and pooling, the correlation.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(figures.PAGE, 3.8))
    for (name, values), marker in zip(tokens.items(), "os", strict=True):
        left.plot(values, marker=marker, label=name)
        left.set_xticks(range(len(values)), ["emb.", *map(str, range(1, len(values)))])
    left.set(xlabel="layer", ylabel="mean cosine of two tokens", title="how narrow the cone is")
    left.set_ylim(-0.05, 1)
    left.legend(fontsize=9)
    for shift, (name, of_pooling) in enumerate(scores.items()):
        places = np.arange(len(of_pooling)) + 0.16 * (shift - 1)
        right.plot(places, list(of_pooling.values()), "os^"[shift], markersize=8, label=name)
        names = [pooling.replace("-average", "-\naverage") for pooling in of_pooling]
        right.set_xticks(range(len(of_pooling)), names)
    right.set(xlabel="pooling", ylabel="Spearman, STS 2014 (times 100)", title="what remedies do")
    right.margins(x=0.1, y=0.25)
    right.legend(fontsize=8, loc="lower right")
    figure.suptitle("Anisotropy of MiniLM, and its remedies")
    figures.show(figure, "Anisotropy by layer, and what its remedies do")


def probes(scores: Mapping[str, Mapping[str, float]]) -> None:
    """Draws the score of each encoder (inner names) in each task."""
    kinds = list(next(iter(scores.values())))
    figure, axis = plt.subplots(figsize=(figures.PAGE, 4.0))
    width = 0.86 / len(kinds)
    for number, kind in enumerate(kinds):
        places = np.arange(len(scores)) + width * (number - (len(kinds) - 1) / 2)
        colour = "#999999" if number == 0 else figures.COLOURS[number - 1]
        heights = [of_kind[kind] for of_kind in scores.values()]
        bars = axis.bar(places, heights, 0.94 * width, color=colour, label=kind)
        axis.bar_label(bars, fmt="%.0f", fontsize=9)
    axis.set_xticks(range(len(scores)), [name.replace(" (", "\n(") for name in scores])
    axis.set(
        xlabel="task (metric)",
        ylabel="score (times 100)",
        title="Scores of a linear probe on sentence vectors",
        ylim=(0, 108),
    )
    axis.grid(axis="x", visible=False)
    figure.legend(loc="outside lower center", ncols=3)
    figures.show(figure, "Probes of sentence vectors, of counted words and of fastText")


def hits(similar: np.ndarray, sentences: Sequence[str], topics: Sequence[str]) -> None:
    """Draws the similarity of hits with the queries.

    Args:
        similar: (hits, queries + hits), the hits in the order of the queries.
        sentences: The hits.
        topics: A short name of each query.
    """
    figure, axis = plt.subplots(figsize=(figures.PAGE, 0.56 * len(sentences) + 1.4))
    names = [textwrap.shorten(text, 72, placeholder=" …") for text in sentences]
    rows = [f"{textwrap.fill(name, 38)}  ({n})" for n, name in enumerate(names, start=1)]
    columns = [*topics, *(str(number) for number in range(1, len(sentences) + 1))]
    figures.heat_map(
        axis, similar, x="the queries, then the sentences again", y="nearest sentences",
        bar="cosine", columns=columns, rows=rows, limits=(0, 1),
    )  # fmt: skip
    axis.set_xticks(range(len(columns)), columns, rotation=90, fontsize=9)
    axis.set_yticks(range(len(rows)), rows, fontsize=9)
    axis.axvline(len(topics) - 0.5, color="white", linewidth=3)
    axis.set_title("Searches in WikiText-2: similarity of queries and hits")
    figures.show(figure, "Similarities of four searches and their hits")
