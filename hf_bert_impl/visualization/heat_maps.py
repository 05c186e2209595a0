"""Heat maps of attention weights."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hf_bert_impl.figures import check_picture, new_figure, save
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


def _title(maps: AttentionMaps) -> str:
    text = " / ".join(" ".join(text.split()) for text in maps.texts)
    return f"{maps.model}: {text if len(text) <= 90 else text[:89] + '…'}"


def _fonts() -> list[str]:
    from matplotlib.font_manager import get_font_names

    installed = set(get_font_names())
    return ["DejaVu Sans", *(name for name in WIDE_FONTS if name in installed)]
