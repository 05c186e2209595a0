"""Heat maps of attention weights and of head importance."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_bert_impl.figures import check_picture, new_figure, save
from hf_bert_impl.tasks.head_importance import HeadImportance
from hf_bert_impl.visualization.attention_maps import AttentionMaps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Inches of a named token's row, and of a whole heat map without names.
NAMED_ROW, UNNAMED_MAP = 0.15, 1.4
#: Inches of a picture above which tokens are numbered, not named.
LARGEST_SIDE = 48.0
#: Fonts for letters that matplotlib's font lacks, in order of preference.
WIDE_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Microsoft YaHei"),
    *("PingFang SC", "Hiragino Sans", "Arial Unicode MS", "Noto Sans", "Unifont"),
)


def draw_attention(file: str | os.PathLike[str], maps: AttentionMaps) -> None:
    """Draws a heat map per layer and head: rows are queries, columns are keys.

    In large pictures, tokens are numbered from 0 instead of named. Colours follow the square root,
    because most weights are small.

    Args:
        file: The file; its ending names the format (.png, .svg, .pdf). It is replaced.
        maps: The maps.

    Raises:
        ValueError: The format or folder does not exist, or matplotlib is missing.
    """
    check_picture(file)
    save(attention_figure(maps), file)


def attention_figure(maps: AttentionMaps) -> Figure:
    """The picture of `draw_attention` as a matplotlib figure."""
    from matplotlib.colors import PowerNorm

    rows, columns, size = len(maps.layers), len(maps.heads), len(maps.tokens)
    named = NAMED_ROW * size * max(rows, columns) <= LARGEST_SIDE
    side = max(NAMED_ROW * size, UNNAMED_MAP) if named else UNNAMED_MAP
    if rows == columns == 1:
        side = max(side, 4.0)
    width, height = side * columns + 2.6, side * rows + 2.2
    font = max(10, 0.4 * width)
    figure, axes = new_figure(
        *(width, height, _title(maps), rows, columns),
        font={"fontsize": font, "family": _fonts()},
        sharex=True,
        sharey=True,
    )
    largest = max(float(layer.weights.max()) for layer in maps.layers)
    norm = PowerNorm(0.5, vmin=0, vmax=largest)
    image: Any = None
    for row, layer in zip(axes, maps.layers, strict=True):
        for axis, head in zip(row, maps.heads, strict=True):
            axis.set_title(f"layer {layer.layer}, head {head}", fontsize=8)
            axis.tick_params(labelsize=7)
            if head not in layer.heads:
                axis.text(0.5, 0.5, "pruned", transform=axis.transAxes, ha="center", va="center")
                continue
            weights = layer.weights[layer.heads.index(head)]
            image = axis.imshow(weights, cmap="viridis", norm=norm, interpolation="nearest")
            axis.grid(False)  # independent of the caller's style
    axis = axes[0, 0]
    axis.set_xlim(-0.5, size - 0.5)
    axis.set_ylim(size - 0.5, -0.5)
    if named:
        text: dict[str, Any] = {"fontsize": 7, "family": _fonts(), "parse_math": False}
        for axis in axes[-1]:
            axis.set_xticks(range(size), maps.tokens, rotation=90, **text)
        for axis in axes[:, 0]:
            axis.set_yticks(range(size), maps.tokens, **text)
    unit = "" if named else ", by number"
    figure.supxlabel(f"to (key){unit}", fontsize=0.9 * font)
    figure.supylabel(f"from (query){unit}", fontsize=0.9 * font)
    shrink = max(0.3, 1 / rows)
    # 0.2 inches wide in any picture.
    bar = figure.colorbar(
        image,
        ax=axes,
        fraction=0.3 / width,
        pad=0.2 / width,
        shrink=shrink,
        aspect=5 * side * rows * shrink,
    )
    bar.set_label("attention weight", fontsize=0.8 * font)
    bar.ax.tick_params(labelsize=0.7 * font)
    return figure


def draw_head_importance(
    file: str | os.PathLike[str],
    importance: HeadImportance,
    pruned: Mapping[int, Sequence[int]],
    title: str,
) -> None:
    """Draws the normalised importance of all heads, with frames around pruned ones.

    Args:
        file: The file; its ending names the format (.png, .svg, .pdf).
        importance: The importance.
        pruned: Layer to pruned heads.
        title: The title.

    Raises:
        ValueError: The format or folder does not exist, or matplotlib is missing.
    """
    check_picture(file)
    save(importance_figure(importance, pruned, title), file)


def importance_figure(
    importance: HeadImportance, pruned: Mapping[int, Sequence[int]], title: str
) -> Figure:
    """The picture of `draw_head_importance` as a matplotlib figure."""
    from matplotlib.patches import Rectangle

    scores = importance.normalized.numpy()  # (L, H)
    layers, heads = scores.shape
    figure, ((axis,),) = new_figure(2.8 + 0.5 * heads, 1.9 + 0.42 * layers, title)
    shown = np.ma.masked_invalid(scores)
    image = axis.imshow(shown, cmap="viridis", vmin=0, vmax=1, aspect="auto")
    axis.grid(False)
    for layer in range(layers):
        for head in range(heads):
            score = scores[layer, head]
            missing = math.isnan(score)
            dark = not missing and score < 0.6
            axis.text(
                *(head, layer, "–" if missing else f"{score:.2f}"),
                ha="center",
                va="center",
                color="white" if dark else "black",
                fontsize=8,
            )
    for layer, gone in pruned.items():
        for head in gone:
            frame = Rectangle(
                (head - 0.46, layer - 0.45), 0.92, 0.9, fill=False, edgecolor="#ff5a36", linewidth=2
            )
            axis.add_patch(frame)
            frame.set_label("pruned")
    if axis.patches:
        figure.legend(
            handles=axis.patches[:1], loc="outside lower right", fontsize=8, frameon=False
        )
    axis.set_xticks(range(heads))
    axis.set_yticks(range(layers))
    axis.set_xlabel("head")
    axis.set_ylabel("layer")
    bar = figure.colorbar(image, ax=axis)
    bar.set_label("importance (ℓ2 norm of a layer: 1)", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    return figure


def _title(maps: AttentionMaps) -> str:
    text = " / ".join(" ".join(text.split()) for text in maps.texts)
    return f"{maps.model}: {text if len(text) <= 90 else text[:89] + '…'}"


def _fonts() -> list[str]:
    from matplotlib.font_manager import get_font_names

    installed = set(get_font_names())
    return ["DejaVu Sans", *(name for name in WIDE_FONTS if name in installed)]
