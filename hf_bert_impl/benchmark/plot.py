"""The picture of a run: bars of speed by case and contestant, and cost against tokens."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from hf_bert_impl.benchmark.cases import CASES, LINE_WIDTHS
from hf_bert_impl.benchmark.report import SHORT_DTYPES
from hf_bert_impl.benchmark.results import Results
from hf_bert_impl.figures import new_figure, plain, save

#: Okabe and Ito's colours, which people with any colour vision can tell apart.
COLOURS = ("#0072B2", "#56B4E9", "#999999", "#555555", "#E69F00", "#D55E00", "#009E73", "#CC79A7")
MARKERS = dict(zip(LINE_WIDTHS, ("o", "s", "^"), strict=True))
#: Labels of ours. Training is the unchanged call, and what takes text prepares its model.
OURS = {
    "unchanged": "ours, unchanged",
    "training step": "ours, unchanged",
    "prepared": "ours, prepared",
    "TextEncoder": "ours, prepared",
    "optimized": "ours, prepared",
}


def speeds(results: Results) -> dict[str, dict[str, float]]:
    """Useful GFLOP/s by batch and contestant; the median where one ran beside several.

    Returns:
        By case (with its rows where there are several sizes), then by contestant with precision,
        ours first.
    """
    by_label: dict[str, dict[str, list[float]]] = {}
    sizes = {name: {row.rows for row in results.rows if row.case == name} for name in CASES}
    for row in sorted(results.rows, key=lambda row: list(CASES).index(row.case)):
        label = row.case if len(sizes[row.case]) == 1 else f"{row.case} x{row.rows}"
        sides = [(row.ours, row.ours_dtype, row.ours_gflops)]
        if row.peer != "self":
            sides.append((row.peer, row.peer_dtype, row.peer_gflops))
        for name, dtype, rate in sides:
            if rate is not None:
                contestant = f"{OURS.get(name, name)} {SHORT_DTYPES[dtype]}"
                by_label.setdefault(label, {}).setdefault(contestant, []).append(rate)
    return {
        label: {
            name: statistics.median(rates)
            for name, rates in sorted(by_name.items(), key=lambda item: "ours" not in item[0])
        }
        for label, by_name in by_label.items()
    }


def draw(results: Results, file: Path) -> None:
    """Draw the plot.

    The background is white whatever the viewer's: axes and text stay readable on a dark page.

    Args:
        results: What was measured.
        file: Where to; its ending names the format (png, svg, pdf).

    Raises:
        InputError: matplotlib is missing.
    """
    rates = speeds(results)
    panels = bool(rates) + bool(results.line)
    where = results.environment
    title = (
        f"{results.settings.get('model', '')}; {where['cpu']}, {where['threads']} thread(s), "
        f"torch {where['torch']}, transformers {where['transformers']}"
    )
    figure, axes = new_figure(11, 4.6 * max(1, panels), title, max(1, panels))
    if rates:
        _bars(axes[0, 0], rates, results)
    if results.line:
        _line(axes[-1, 0], results)
    save(figure, file)


def _bars(axis: Any, rates: dict[str, dict[str, float]], results: Results) -> None:
    names = list(dict.fromkeys(name for by_name in rates.values() for name in by_name))
    for index, name in enumerate(names):
        colour, hatch = COLOURS[index % len(COLOURS)], "//" if index >= len(COLOURS) else None
        places, heights = [], []
        for group, by_name in enumerate(rates.values()):
            if name in by_name:
                # A contestant that did not run in this case takes no room in its group.
                place = list(by_name).index(name) - (len(by_name) - 1) / 2
                places.append(group + place * 0.84 / len(by_name))
                heights.append((by_name[name], 0.8 / len(by_name)))
        axis.bar(
            places,
            [height for height, _ in heights],
            [width for _, width in heights],
            label=name,
            color=colour,
            hatch=hatch,
            edgecolor="white",
        )
    for dtype in results.products:
        best = results.best(dtype)
        if best and dtype in {row.ours_dtype for row in results.rows}:
            axis.axhline(best, color="black", linewidth=1, linestyle=":")
            axis.annotate(
                f"best matrix product, {SHORT_DTYPES[dtype]}",
                (0, best),
                xycoords=("axes fraction", "data"),
                xytext=(4, 3),
                textcoords="offset points",
                fontsize=8,
            )
    axis.set_xticks(range(len(rates)), list(rates))
    axis.set_ylabel("GFLOP/s on real tokens (more is faster)")
    axis.legend(fontsize=8, ncols=2, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    plain(axis)


def _line(axis: Any, results: Results) -> None:
    contestants = list(dict.fromkeys((p.contestant, p.dtype) for p in results.line))
    for index, (name, dtype) in enumerate(contestants):
        points = [p for p in results.line if (p.contestant, p.dtype) == (name, dtype)]
        label = f"{OURS.get(name, name)} {SHORT_DTYPES[dtype]}"
        for widths in sorted({p.widths for p in points}):
            chosen = sorted((p for p in points if p.widths == widths), key=lambda p: p.tokens)
            axis.plot(
                [p.tokens for p in chosen],
                [p.ms for p in chosen],
                color=COLOURS[index % len(COLOURS)],
                marker=MARKERS.get(widths, "d"),
                linewidth=1,
                label=label if widths == min(LINE_WIDTHS) else None,
            )
    axis.set_xlabel(
        "real tokens in the batch (circles, squares, triangles: padded "
        f"{', '.join(str(factor) for factor in LINE_WIDTHS)} times as wide)"
    )
    axis.set_ylabel("ms")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    plain(axis)
