"""Attention as an interactive web page, in one file that works offline."""

from __future__ import annotations

import base64
import dataclasses
import html
import json
import os
import string
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hf_bert_impl.errors import InputError
from hf_bert_impl.files.atomic import atomic_file
from hf_bert_impl.visualization.attention_maps import AttentionMaps

SCRIPTS = ("page.js", "head_view.js", "model_view.js")
#: The page stores weights as integers in units of 1/65535.
UNIT = 65535
#: Maximum number of weights, at 2.7 bytes each; browsers open larger pages slowly.
MOST_WEIGHTS = 10_000_000
#: Height of the frame in a notebook, in CSS pixels.
FRAME_HEIGHT = 680


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionPage:
    """An interactive page of attention maps; notebooks display it.

    Raises:
        ValueError: There are too many weights.

    Examples:
        >>> model = BertModel.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
        >>> tokenizer = BertTokenizer.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
        >>> from hf_bert_impl.visualization import attention_maps
        >>> page = AttentionPage(attention_maps(model, tokenizer, "A cat naps."))
        >>> page.save("page.html")
    """

    maps: AttentionMaps
    """The maps."""

    def __post_init__(self) -> None:
        count = sum(layer.weights.size for layer in self.maps.layers)
        if count > MOST_WEIGHTS:
            squares = MOST_WEIGHTS // len(self.maps.tokens) ** 2
            raise InputError(
                f"The page would have {count:,} weights. The limit is {MOST_WEIGHTS:,}, or "
                f"{squares} heads of {len(self.maps.tokens)} tokens. Choose fewer layers or "
                "heads."
            )

    @property
    def html(self) -> str:
        """The page as one self-contained HTML document."""
        return string.Template(_asset("page.html")).substitute(
            title=html.escape(f"Attention of {self.maps.model}"),
            style=_asset("page.css"),
            script="\n".join(map(_asset, SCRIPTS)),
            data=_embedded_json(self.maps),
        )

    def save(self, file: str | os.PathLike[str]) -> None:
        """Writes the page atomically, replacing an existing file."""
        with atomic_file(Path(file)) as fresh:
            fresh.write_text(self.html, encoding="utf-8")

    def _repr_html_(self) -> str:
        # A frame isolates its style and script from the notebook's.
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" sandbox="allow-scripts" '
            f'title="{html.escape(f"Attention of {self.maps.model}")}" '
            f'style="width: 100%; height: {FRAME_HEIGHT}px; border: 0"></iframe>'
        )


def whole_numbers(weights: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Probabilities in units of 1/`UNIT`, by the largest-remainder method.

    Args:
        weights: (..., S); rows sum to 1.

    Returns:
        (..., S) integers whose rows sum to `UNIT` exactly, each within a unit of its weight.
    """
    exact = weights.astype(np.float64)
    exact *= UNIT / exact.sum(axis=-1, keepdims=True)
    down = np.floor(exact)
    lacking = UNIT - down.sum(axis=-1, keepdims=True)
    order = np.argsort(down - exact, axis=-1, kind="stable")  # largest remainder first
    rank = np.argsort(order, axis=-1, kind="stable")
    return (down + (rank < lacking)).astype(np.uint16)


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _embedded_json(maps: AttentionMaps) -> str:
    """The maps as JSON for a script element."""
    data = {
        "model": maps.model,
        "texts": maps.texts,
        "tokens": maps.tokens,
        "segments": maps.segments,
        "unit": UNIT,
        "layers": [
            {
                "layer": layer.layer,
                "heads": layer.heads,
                "weights": base64.b64encode(
                    whole_numbers(layer.weights).astype("<u2").tobytes()
                ).decode("ascii"),
            }
            for layer in maps.layers
        ],
    }
    # ASCII without "<", so that neither "</script>" nor "<!--" can end the element.
    return json.dumps(data).replace("<", "\\u003c")
