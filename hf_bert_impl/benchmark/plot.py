"""The picture of a run: speed-ups by case and peer."""

from __future__ import annotations

from pathlib import Path

from hf_bert_impl.benchmark.results import SHORT_DTYPES, Results
from hf_bert_impl.figures import COLOURS, new_figure, plain, save


def draw(results: Results, file: Path) -> None:
    """Draws one bar per row with the minimum and maximum of the rounds.

    Raises:
        InputError: matplotlib is missing.
    """
    rows, where = results.rows, results.environment
    title = (
        f"{results.settings.get('model', '')}; {where['cpu']}, {where['threads']} thread(s), "
        f"torch {where['torch']}, transformers {where['transformers']}"
    )
    figure, axes = new_figure(11, 1.5 + 0.25 * len(rows), title)
    axis = axes[0, 0]
    names = [
        f"{row.case}: {row.ours} {SHORT_DTYPES[row.ours_dtype]} and "
        f"{row.peer} {SHORT_DTYPES[row.peer_dtype]}"
        for row in rows
    ]
    cases = [*dict.fromkeys(row.case for row in rows)]
    colours = [COLOURS[cases.index(row.case)] for row in rows]
    below = [row.ratio - row.ratio_min for row in rows]
    above = [row.ratio_max - row.ratio for row in rows]
    axis.barh(names, [row.ratio for row in rows], xerr=(below, above), color=colours)
    axis.axvline(1.0, color="black", linewidth=1, linestyle=":")
    axis.invert_yaxis()
    axis.set_xlabel("speed-up over the peer")
    plain(axis, lines=False)
    save(figure, file)
