"""Pictures of lesson 11: the bits of a sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np

from .. import figures
from ..diagram import Diagram


def causes(width: int, layers: int) -> None:
    """Draws the chain from the shape of a batch to other bits, and where the remedy cuts it."""
    drawing = Diagram(2.9, "Why the bits of one sentence depend on the others in its batch")
    chain = [
        drawing.box(x, 1.75, text, width=box_width, height=0.9, fill=fill)
        for x, text, box_width, fill in (
            (0.95, f"batch of B texts:\n(B·S, {width}) times\na matrix", 1.5, "yellow"),
            (2.8, "the library chooses\na kernel by the\nshape", 1.6, "orange"),
            (4.65, f"the kernel sums\nthe {width} terms in\nits own order", 1.6, "orange"),
            (6.45, "rounded sums\ndiffer in their\nlast bits", 1.5, "green"),
            (8.15, f"{layers} layers spread\nthem: other\nvectors", 1.4, "yellow"),
        )
    ]
    drawing.chain(chain)
    text = "batch_invariant: one kernel, one order, for every shape"
    drawing.arrow(drawing.box(2.8, 0.5, text, width=4.0), chain[1])
    figures.show(drawing.figure, "From the shape of a batch to other bits, and where it is cut")


def orders_of_sums(sums: Mapping[str, np.ndarray], exact: np.ndarray) -> np.ndarray:
    """Draws how many sums differ between orders, and how far each order is from the exact sum.

    Args:
        sums: By order, the sums in float32.
        exact: The same sums in float64.

    Returns:
        The percentage of differing sums for each pair of orders.
    """
    names = list(sums)
    unequal = np.array([[100 * (sums[a] != sums[b]).mean() for b in names] for a in names])
    step = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)  # an ulp of each sum
    errors = [np.abs(of_order - exact) / step for of_order in sums.values()]
    figure, (left, right) = plt.subplots(1, 2, figsize=(figures.PAGE, 4.2), width_ratios=(1.15, 1))
    figures.heat_map(
        left, unequal, x="order of the sum", y="order of the sum", columns=names, rows=names,
        bar="outputs with other bits (%)", limits=(0, 100),
    )  # fmt: skip
    for (row, column), value in np.ndenumerate(unequal):
        colour = "black" if value > 60 else "white"
        left.text(column, row, f"{value:.0f}", ha="center", va="center", color=colour, fontsize=8)
    left.set_title("how many outputs differ")
    right.boxplot(errors, tick_labels=names, orientation="horizontal", showfliers=False)
    right.invert_yaxis()
    right.set(xlabel="distance from the exact sum (ulp)", ylabel="order of the sum")
    right.set_title("how far off each order is")
    figure.suptitle(f"The same 384 terms, added in {len(names)} orders ({len(exact)} outputs)")
    figures.show(figure, "How many outputs differ between six orders of the same sums, and how far")
    return unequal


def patterns(found: Mapping[str, Sequence[int]], rows: Sequence[int]) -> None:
    """Draws the number of the bit pattern (from 0) of one output, by the number of rows."""
    figure, axes = plt.subplots(2, 1, figsize=(figures.PAGE, 3.6), sharex=True)
    for axis, (name, places), colour in zip(axes, found.items(), figures.COLOURS, strict=False):
        axis.scatter(rows, [place + 1 for place in places], s=9, color=colour)
        axis.set(ylabel="bit pattern", title=f"{name}: {max(places) + 1} bit pattern(s)")
        axis.set_yticks(range(1, max(places) + 2))
        axis.set_ylim(0.5, max(places) + 1.5)
    axes[1].set_xscale("log", base=2)
    ticks = [1, 2, 4, 8, 16, 32, 64, 128]
    axes[1].set_xticks(ticks, map(str, ticks))
    figure.supxlabel("rows of the matrix (tokens of the batch)", fontsize=10)
    figure.suptitle("Bits of one row's output, by the number of rows")
    figures.show(figure, "Bit patterns of one row's output, by the number of rows of the matrix")


def through_layers(
    shares: Mapping[str, Sequence[float]], gaps: Mapping[str, Sequence[float]]
) -> None:
    """Draws the percentage of differing numbers and the largest difference, layer by layer."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(figures.PAGE, 3.8))
    for name, marker in zip(shares, "os^", strict=True):
        left.plot(shares[name], marker=marker, label=name)
        right.plot(gaps[name], marker=marker, label=name)
    left.set(xlabel="layer (0: embeddings)", ylabel="numbers with other bits (%)", ylim=(-3, 103))
    left.set_title("how many differ")
    right.set(xlabel="layer (0: embeddings)", ylabel="largest difference of two numbers")
    right.set_yscale("symlog", linthresh=1e-8)
    right.set_title("how much they differ")
    left.legend(fontsize=8)
    figure.suptitle("One sentence alone and in a batch of eight, layer by layer (MiniLM, float32)")
    figures.show(figure, "Share of differing numbers and largest difference, layer by layer")
