"""Pictures of lesson 14: the vision transformer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from torch import Tensor

from .. import figures
from ..diagram import Diagram


def network(side: int, patch: int, size: int, heads: int, hidden: int, blocks: int) -> None:
    """Draws the network from a picture to the scores of 26 letters.

    Args:
        side: Pixels of a side of the picture.
        patch: Pixels of a side of a patch.
        size: Numbers for each patch.
        heads: Heads of each attention.
        hidden: Size of the feed-forward layer.
        blocks: Number of blocks.
    """
    patches = (side // patch) ** 2
    drawing = Diagram(5.3, f"The ViT of this notebook: {patches} patches and a class token")
    drawing.box(4.6, 3.0, "", width=3.6, height=1.9, fill="grey")
    drawing.note(2.9, 3.8, f"{blocks} times")
    picture = drawing.box(1.3, 0.35, f"pictures (B, 1, {side}, {side})", width=2.2, fill="yellow")
    cut = drawing.box(4.6, 0.35, f"patches (B, {patches}, {patch**2})", width=2.4, fill="yellow")
    vectors = drawing.box(4.6, 1.0, f"one matrix: (B, {patches}, {size})", width=2.4)
    first = drawing.box(1.3, 1.65, f"class token ({size})", width=2.0)
    vector = f"position vectors ({patches + 1}, {size})"
    position = drawing.box(7.8, 1.65, vector, width=2.2)
    joined = drawing.box(4.6, 1.65, f"joined, and added: (B, {patches + 1}, {size})", width=2.8)
    look = f"norm, self-attention of {heads} heads, +"
    looks = drawing.box(4.6, 2.5, look, width=2.8, fill="orange")
    feeds = f"norm, feed-forward {size} → {hidden} → {size}, +"
    feed = drawing.box(4.6, 3.4, feeds, width=2.9, fill="green")
    norm = drawing.box(4.6, 4.35, f"norm, the class token alone: (B, {size})", width=2.9)
    scores = drawing.box(7.8, 4.35, "scores of the letters (B, 26)", width=2.2, fill="yellow")
    drawing.chain([picture, cut, vectors, joined, looks, feed, norm, scores])
    for begin in (first, position):
        drawing.arrow(begin, joined)
    figures.show(drawing.figure, "From a picture to the scores of 26 letters")


def alphabet(above: Tensor, below: Tensor) -> None:
    """Draws two alphabets of letters, (26, 1, height, width) each."""
    figure, axes = plt.subplots(4, 13, figsize=(figures.PAGE, 3.5))
    for row, letters in enumerate((above, below)):
        for column in range(26):
            axis = axes[2 * row + column // 13, column % 13]
            axis.imshow(letters[column, 0], cmap="gray_r", vmin=-0.2, vmax=1.1)
            axis.set_axis_off()
    figure.suptitle("Above: letters to learn from. Below: letters of fonts that are kept for tests")
    figures.show(figure, "Training letters, and test letters of other fonts")


def as_patches(picture: Tensor, patches: Tensor) -> None:
    """Draws a picture with a grid, and its patches in a row.

    Args:
        picture: (side, side).
        patches: (sixteen patches, pixels of one).
    """
    side, count = len(picture), len(patches)
    pixels = round(patches.shape[1] ** 0.5)
    figure = plt.figure(figsize=(figures.PAGE, 2.9))
    halves: Any = figure.subfigures(1, 2, width_ratios=[1, 2.2])
    left, right = halves
    axis = left.subplots()
    axis.imshow(picture, cmap="gray_r", extent=(0, side, side, 0))
    axis.set_xticks(range(0, side + 1, pixels))
    axis.set_yticks(range(0, side + 1, pixels))
    axis.grid(True, color=figures.COLOURS[0], linewidth=0.8)
    axis.set(title=f"{side} × {side} pixels", xlabel="column (pixels)", ylabel="row (pixels)")
    for number, axis in enumerate(right.subplots(2, count // 2).flat):
        axis.set_axis_off()
        square = patches[number].view(pixels, pixels)
        axis.imshow(square, cmap="gray_r", vmin=-0.2, vmax=1.1)
        axis.set_title(str(number + 1), fontsize=8, pad=2)
    right.suptitle(f"the same as {count} tokens of {pixels**2} numbers", fontsize=11)
    figures.show(figure, "A letter, and its sixteen patches")


def by_amount(
    found: Mapping[tuple[str, int], Mapping[str, Sequence[float]]], tests: int, guessing: float
) -> None:
    """Draws accuracies by the number of training pictures, one panel for each test.

    Args:
        found: By network and number of pictures, the accuracies (0 to 1) of all seeds in each test.
        tests: Pictures of each test.
        guessing: The accuracy of a guess.
    """
    names = list(dict.fromkeys(name for name, _ in found))
    counts = list(dict.fromkeys(count for _, count in found))
    kinds = list(next(iter(found.values())))
    figure, axes = plt.subplots(1, len(kinds), figsize=(figures.PAGE, 3.5), sharey=True)
    for axis, test in zip(axes, kinds, strict=True):
        for name in names:
            shares = 100 * np.array([found[name, count][test] for count in counts])
            means = shares.mean(axis=1)  # (counts)
            spread = means - shares.min(axis=1), shares.max(axis=1) - means
            axis.errorbar(counts, means, spread, marker="o", capsize=4, label=name)
            for count, mean, low, high in zip(counts, means, *spread, strict=True):
                is_above = name == names[-1]
                axis.annotate(
                    f"{mean:.0f}", (count, mean + (high if is_above else -low)),
                    (0, 5 if is_above else -13), fontsize=8, textcoords="offset points",
                    ha="center",
                )  # fmt: skip
        axis.axhline(100 * guessing, color="#777777", linestyle="--", linewidth=1, label="guessing")
        axis.set_xscale("log")
        axis.set_xticks(counts, [f"{count:,}" for count in counts], minor=False)
        axis.set_xticks([], minor=True)
        axis.set(title=test, xlabel="pictures to learn from", ylabel="accuracy (%)", ylim=(0, 108))
        axis.legend(fontsize=8, loc="lower right")
    seeds = len(next(iter(found.values()))[kinds[0]])
    figure.suptitle(f"{tests:,} test pictures; mean, minimum and maximum over the seeds ({seeds})")
    figures.show(
        figure,
        "Accuracy on known and new fonts by the number of pictures, with convolutions to compare",
    )


def attended_letters(
    pictures: Tensor, weights: Tensor, titles: Sequence[str], mistaken: Sequence[bool]
) -> None:
    """Draws letters, four in a row, each beside the same letter under its attention weights.

    Args:
        pictures: (eight letters, side, side).
        weights: (eight letters, rows of patches, columns of patches).
        titles: Those of the letters.
        mistaken: True for a red title.
    """
    side = pictures.shape[1]
    figure, axes = plt.subplots(4, 4, figsize=(figures.PAGE, 9.4))
    for number, picture in enumerate(pictures):
        top, low = axes[2 * (number // 4) : 2 * (number // 4) + 2, number % 4]
        for axis in (top, low):
            axis.imshow(picture, cmap="gray_r", extent=(0, side, side, 0))
            axis.set(xticks=[], yticks=[])
            axis.grid(False)
        low.imshow(
            weights[number], cmap="Oranges", extent=(0, side, side, 0), alpha=0.75,
            vmin=0, vmax=weights.max(),
        )  # fmt: skip
        colour = "#B00020" if mistaken[number] else "black"
        top.set_title(titles[number], fontsize=13, color=colour)
    figure.supxlabel(f"column ({side} pixels)")
    figure.supylabel(f"row ({side} pixels)")
    figure.colorbar(
        axes[1, 0].images[1], ax=axes, label="weight of the patch", shrink=0.5, location="bottom"
    )
    figure.suptitle("Letters of new fonts, and below each the positions that the class token reads")
    figures.show(figure, "Where the class token attends")


def positions(attended: Tensor, lost: Tensor, tests: int) -> None:
    """Draws two numbers for each of 4 × 4 positions.

    Args:
        attended: (16), the mean weight of each position.
        lost: (16), the points lost without each position.
        tests: The number of test pictures.
    """
    figure, axes = plt.subplots(1, 2, figsize=(figures.PAGE, 4.2))
    shares = 100 * attended / attended.sum()
    for axis, title, values, bar in (
        (axes[0], "Where it attends", shares, "share of the weight (%)"),
        (axes[1], "One patch blank", lost, "accuracy lost (points)"),
    ):
        names = ["1", "2", "3", "4"]
        figures.heat_map(
            axis, values.view(4, 4).numpy(), x="column of patches", y="row of patches", bar=bar,
            columns=names, rows=names, colours="Oranges",
        )  # fmt: skip
        for (row, column), value in np.ndenumerate(values.view(4, 4).numpy()):
            colour = "white" if value > 0.7 * values.max() else "black"
            axis.text(column, row, str(round(value)), ha="center", va="center", color=colour)
        axis.set_title(title)
    figure.suptitle(f"The 16 positions in {tests:,} letters of new fonts")
    figures.show(figure, "Where the class token attends, and the cost of a blank patch by position")
