"""Pictures of lesson 9: padding and speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import ListedColormap
from torch import Tensor

from .. import figures
from ..diagram import Diagram

#: Names of the benchmark in words.
PLAIN = {
    "upstream-sdpa": "transformers (SDPA)",
    "upstream-eager": "transformers (eager)",
    "short": "32 short texts,\nmuch padding",
    "full": "16 texts of 64,\nno padding",
    "sentence": "one short\nsentence",
}


def two_ways(width: int, depth: int) -> None:
    """Draws the padded and the packed way from token numbers to states.

    Args:
        width: Numbers of a state.
        depth: Number of layers.
    """
    drawing = Diagram(3.9, f"The same states by two ways through {depth} layers")
    ids = "token numbers\n(B, S), mask"
    given = drawing.box(0.95, 1.85, ids, width=1.5, height=0.6, fill="yellow")
    made = f"states\n(B, S, {width})"
    states = drawing.box(8.05, 1.85, made, width=1.5, height=0.6, fill="yellow")
    whole = f"embeddings and {depth} layers on (B, S, {width})"
    usual = drawing.box(4.5, 2.85, whole, width=4.2, fill="orange")
    pairs = "attention: all S × S pairs, then hide the padding"
    drawing.box(4.5, 3.35, pairs, width=4.2, height=0.34)
    drawing.arrow(given, usual)
    drawing.arrow(usual, states)
    plan = "take out the\npadding: (T)"
    plans = drawing.box(2.4, 1.0, plan, width=1.4, height=0.6, fill="green")
    part = f"embeddings and\n{depth} layers on (T, {width})"
    packed = drawing.box(4.5, 1.0, part, width=2.0, height=0.6, fill="orange")
    pads = drawing.box(6.45, 1.0, "put it\nback", width=1.0, height=0.6, fill="green")
    blocks = "attention: only the pairs of real tokens of a text"
    drawing.box(4.5, 0.35, blocks, width=4.2, height=0.34)
    for begin, end in ((given, plans), (plans, packed), (packed, pads), (pads, states)):
        drawing.arrow(begin, end, sideways=begin is plans or begin is packed)
    figures.show(drawing.figure, "The padded and the packed way from numbers to states")


def padding(
    lengths: Sequence[int], sizes: Sequence[int], shares: Mapping[str, Sequence[float]]
) -> None:
    """Draws one batch, and the share of padding by the size of the batch.

    Args:
        lengths: Tokens of the texts of the batch.
        sizes: Sizes of batches.
        shares: By the order of the texts, the share (0 to 1) of padding for each size.
    """
    grid = np.arange(max(lengths)) < np.array(lengths)[:, None]  # (texts, positions)
    figure, (left, right) = plt.subplots(1, 2, figsize=(figures.PAGE, 3.9), width_ratios=(1.25, 1))
    colours = ListedColormap(["#e8e8e8", figures.COLOURS[0]])
    left.imshow(grid, aspect="auto", cmap=colours, vmin=0, vmax=1, interpolation="nearest")
    left.grid(False)
    left.set(
        xlabel="position (tokens)",
        ylabel="text of the batch",
        title=f"blue: tokens; grey: {1 - grid.mean():.0%} padding",
    )
    for (name, found), marker in zip(shares.items(), "os", strict=True):
        right.plot(sizes, [100 * share for share in found], marker=marker, label=name)
    right.set_xscale("log", base=2)
    right.set_xticks(sizes, map(str, sizes))
    right.set(
        xlabel="texts in a batch",
        ylabel="padding (% of the batch)",
        title="larger batches waste more",
    )
    right.set_ylim(0, 100)
    right.legend(fontsize=8)
    figure.suptitle("Padding in batches of real text")
    figures.show(figure, "A padded batch, and padding against the size of the batch")


def packing(mask: Tensor, rows: Tensor, packed: Tensor) -> None:
    """Draws a padded batch, its packed tokens, and the blocks of their attention.

    Args:
        mask: (B, S), True at tokens.
        rows: (B, S), the row of each place.
        packed: (T,), the row of each packed token.
    """
    B, S = mask.shape
    colours = ListedColormap(["#f0f0f0", *figures.COLOURS[:B]])
    figure, axes = plt.subplots(1, 3, figsize=(figures.PAGE, 3.5), width_ratios=(1.1, 1.1, 1))
    axes[0].imshow(torch.where(mask, rows + 1, 0), cmap=colours, vmin=0, vmax=B, aspect="auto")
    axes[0].set(
        xlabel="position", ylabel="row of the batch", title=f"padded: {B}·{S} = {B * S} positions"
    )
    axes[0].set_yticks(range(B))
    axes[1].imshow(packed[None] + 1, cmap=colours, vmin=0, vmax=B, aspect="auto")
    axes[1].set(
        xlabel="place in the packed list",
        ylabel="colour: the row it came from",
        title=f"packed: {len(packed)} tokens",
    )
    axes[1].set_yticks([])
    block = torch.where(packed[:, None] == packed, packed + 1, 0)
    axes[2].imshow(block, cmap=colours, vmin=0, vmax=B)
    axes[2].set(xlabel="to (key)", ylabel="from (query)", title="attention: blocks alone")
    for axis in axes:
        axis.grid(False)
    figure.suptitle("From a padded batch to packed tokens")
    figures.show(figure, "From a padded batch to packed tokens and blocks of attention")


def costs(
    shares: Sequence[float],
    work: Mapping[str, Sequence[float]],
    timed: Mapping[str, Sequence[tuple[float, float]]],
) -> None:
    """Draws operations and time of a real token.

    Args:
        shares: Percent of padding.
        work: By model, the operations of a token for each share.
        timed: By model, shares with their microseconds of a token.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(figures.PAGE, 3.7))
    for (name, values), marker in zip(work.items(), "os", strict=True):
        left.plot(shares, [value / 1e6 for value in values], marker=marker, label=name)
        right.plot(*zip(*timed[name], strict=True), marker=marker, label=name)
    left.set(xlabel="padding (% of the batch)", ylabel="Mflop per real token", title="counted")
    right.set(xlabel="padding (% of the batch)", ylabel="µs per real token", title="timed here")
    for axis in (left, right):
        axis.set_ylim(bottom=0)
        axis.legend()
    figure.suptitle(
        "Cost of a real token, by the mix of lengths (MiniLM, 16 rows, the longest 128)"
    )
    figures.show(figure, "Work and time per real token, by the share of padding")


def comparison(results: Any, tokens: Sequence[int], line: Mapping[str, Sequence[Any]]) -> None:
    """Draws the speed-up over peers, and the time of batches that are padded ever wider.

    Args:
        results: Of a benchmark, with its rows and its environment.
        tokens: Real tokens of each batch.
        line: By model, for each batch its milliseconds when padded once, twice and four times
            as wide.
    """
    prepared = [row for row in results.rows if row.ours == "prepared"]
    kinds = list(dict.fromkeys(row.case for row in prepared))
    peers = list(dict.fromkeys(row.peer for row in prepared))
    figure, (left, right) = plt.subplots(1, 2, figsize=(figures.PAGE, 4.8), width_ratios=(1.15, 1))
    for place, peer in enumerate(peers):
        rows = [row for row in prepared if row.peer == peer]
        shift = 0.85 * (place - (len(peers) - 1) / 2) / len(peers)
        ratios, low, high = np.array([(row.ratio, row.ratio_min, row.ratio_max) for row in rows]).T
        left.bar(
            [kinds.index(row.case) + shift for row in rows], ratios, 0.8 / len(peers),
            yerr=(ratios - low, high - ratios), capsize=2, label=PLAIN.get(peer, peer),
        )  # fmt: skip
    left.axhline(1, color="black", linewidth=1)
    left.set_xticks(range(len(kinds)), [PLAIN[kind] for kind in kinds])
    left.set(
        xlabel="batch (below: compared with)",
        ylabel="speed-up of this package, prepared",
        title="speed-up: median, minimum and maximum",
    )
    left.grid(axis="x", visible=False)
    left.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2)
    for number, (name, values) in enumerate(line.items()):
        for place, marker in enumerate("os^"):
            right.plot(
                tokens, [row[place] for row in values], marker=marker, markersize=5, linewidth=1,
                color=figures.COLOURS[number], label=None if place else name,
            )  # fmt: skip
    right.set(xlabel="real tokens in the batch", ylabel="milliseconds")
    right.set_title(
        "time: the batch as it is (●), twice (■)\nand four times (▲) as wide by padding"
    )
    right.set_ylim(bottom=0)
    right.legend(fontsize=8)
    where = results.environment
    processor = where["cpu"].split(" (")[0]
    figure.suptitle(f"MiniLM in float32 on this machine: {processor}, {where['threads']} thread(s)")
    figures.show(figure, "Speed-up over other runtimes, and time by real tokens")
