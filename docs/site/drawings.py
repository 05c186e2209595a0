"""The drawings of docs/inside.md: `python docs/site/drawings.py` writes them into docs/drawings/.

They are small SVG files, written as text, so that the same code gives the same bytes everywhere.
The drawing of the folders is made from the imports that tests/test_structure.py finds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from html import escape
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/drawings"
WIDTH = 660
TOKENS = {"a": "#0072B2", "b": "#D55E00", "c": "#009E73", ".": "#dddddd"}
#: Pale, so that black letters can be read on all of them.
FILLS = {"code": "#d6e9f5", "data": "#fbeecb", "choice": "#fbe3d0"}

Place = tuple[float, float]


class Drawing:
    """Boxes and arrows on white, whatever the page's colours are."""

    def __init__(self, height: float, title: str) -> None:
        self.height, self.title = height, title
        self.parts: list[str] = []

    def box(self, x: float, y: float, width: float, *lines: str, fill: str = "code") -> None:
        """A box around a middle; its first line is bold if there are more."""
        height = 16 * len(lines) + 12
        self.parts.append(
            f'<rect x="{x - width / 2:g}" y="{y - height / 2:g}" width="{width:g}" '
            f'height="{height}" rx="4" fill="{FILLS[fill]}" stroke="#555"/>'
        )
        for number, line in enumerate(lines):
            row = y - 8 * (len(lines) - 1) + 16 * number + 4.5
            bold = number == 0 and len(lines) > 1
            self.text(x, row, line, anchor="middle", weight="bold" if bold else "normal")

    def text(
        self, x: float, y: float, line: str, *, anchor: str = "start", weight: str = "normal"
    ) -> None:
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-weight="{weight}">'
            f"{escape(line)}</text>"
        )

    def arrow(self, *places: Place) -> None:
        """Along straight lines, or where there are more than two places along a smooth curve."""
        path = f"M{places[0][0]:g} {places[0][1]:g}"
        for (x, y), (to_x, to_y) in pairwise(places):
            middle = (y + to_y) / 2
            path += f"C{x:g} {middle:g} {to_x:g} {middle:g} {to_x:g} {to_y:g}"
        self.parts.append(f'<path d="{path}" marker-end="url(#head)"/>')

    def squares(self, x: float, y: float, row: str) -> None:
        """One square a token, grey where it is padding (`.`)."""
        for number, token in enumerate(row):
            self.parts.append(
                f'<rect x="{x + 16 * number:g}" y="{y:g}" width="14" height="14" '
                f'fill="{TOKENS[token]}"/>'
            )

    def svg(self) -> str:
        parts = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height:g}" '
            f'width="{WIDTH}" height="{self.height:g}" font-family="sans-serif" font-size="12">\n'
            f"<title>{escape(self.title)}</title>\n"
            "<style>path { fill: none; stroke: #555; } text { fill: #111; }</style>\n"
            '<marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
            'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" style="fill: #555"/></marker>\n'
            f'<rect width="{WIDTH}" height="{self.height:g}" fill="#ffffff"/>\n{parts}\n</svg>\n'
        )


def forward_pass() -> Drawing:
    """From ids to a padded output; shapes stand beside the arrows."""
    drawing = Drawing(850, "From input ids to the padded output")
    steps: list[tuple[int, tuple[str, ...], str, str]] = [
        (30, ("texts",), "data", ""),
        (95, ("tokenization_bert.py", "texts to ids and a mask"), "code", "input_ids (B, S)"),
        (175, ("modeling_bert.py: a head", "says which positions it will read"), "code", ""),
        (255, ("layout.py: Inputs", "shapes, ranges of ids, the mask"), "code", ""),
        (
            335,
            ("layout.py: plan", "which tokens are computed, in which order"),
            "code",
            "ids (T,)",
        ),
        (425, ("layers.py: embeddings",), "code", "(T, D)"),
        (
            510,
            ("layers.py, attention.py: N layers", "every linear layer by linear.py"),
            "code",
            "(T, D)",
        ),
        (600, ("the last layer", "only tokens that the head reads"), "code", "(K, D)"),
        (690, ("the head", "scores of what it needs"), "code", "(K, V)"),
        (780, ("Encoded.pad, losses.py", "padded once; a loss where there are labels"), "code", ""),
    ]
    x, width = 200, 300
    for (y, lines, fill, shape), below in zip(steps, [*steps[1:], None], strict=True):
        drawing.box(x, y, width, *lines, fill=fill)
        if below:
            begin, end = y + 8 * len(lines) + 6, below[0] - 8 * len(below[1]) - 6
            drawing.arrow((x, begin), (x, end))
            drawing.text(x + 10, (begin + end) / 2 + 4, shape)
    drawing.arrow((x, 802), (x, 836))
    drawing.text(x + 10, 825, "ModelOutput: logits (B, S, V)")
    side = 510
    drawing.text(side - 110, 108, "B = 3 texts, S = 8; grey is padding")
    for number, row in enumerate(("aaaaaaaa", "bbb.....", "ccccc...")):
        drawing.squares(side - 110, 118 + 18 * number, row)
    drawing.text(side - 110, 394, "T = 16 tokens, no padding")
    drawing.squares(side - 110, 404, "bbbcccccaaaaaaaa")
    drawing.box(
        side,
        325,
        250,
        "Route.PADDED",
        "hooks, compiled models, decoders:",
        "all below on (B, S, D)",
        fill="choice",
    )
    drawing.arrow((351, 325), (384, 325))
    drawing.box(
        side,
        510,
        250,
        "kernels.py",
        "the same layers with packed weights,",
        "after prepare_for_inference",
        fill="choice",
    )
    drawing.arrow((385, 510), (351, 510))
    drawing.text(side - 110, 645, "K of them are read, of a classifier three")
    drawing.squares(side - 110, 655, "bca")
    return drawing


def conversion() -> Drawing:
    """A checkpoint's way."""
    drawing = Drawing(690, "From a checkpoint of any format to a folder")
    x, width = 200, 310
    steps: list[tuple[int, tuple[str, ...], str, str]] = [
        (30, ("a path, an archive or a hub id",), "data", ""),
        (
            105,
            ("from_hub.py, formats.py", "fetches it, and tells the format by its bytes"),
            "code",
            "",
        ),
        (
            195,
            ("readers/", "bytes to arrays; know no BERT"),
            "code",
            "arrays with the names of the source",
        ),
        (285, ("architecture.py", "which model this is, by names and shapes"), "code", ""),
        (
            375,
            ("planning.py", "applies the rules, in either direction"),
            "code",
            "arrays with our names",
        ),
        (465, ("target.py", "class, config and types"), "code", ""),
        (
            555,
            ("writers/, vocabulary.py", "weights and tokenizer into a folder"),
            "code",
            "a whole folder, or none",
        ),
        (640, ("checks.py, report.py", "outputs beside transformers and the source"), "code", ""),
    ]
    for (y, lines, fill, note), below in zip(steps, [*steps[1:], None], strict=True):
        drawing.box(x, y, width, *lines, fill=fill)
        if below:
            begin, end = y + 8 * len(lines) + 6, below[0] - 8 * len(below[1]) - 6
            drawing.arrow((x, begin), (x, end))
            drawing.text(x + 10, (begin + end) / 2 + 4, note)
    side = 525
    drawing.box(
        side,
        375,
        220,
        "maps/: tables of rules.py",
        "name, our name, operation;",
        "know no bytes",
        fill="data",
    )
    drawing.arrow((414, 375), (356, 375))
    drawing.box(side, 465, 220, "an error names every tensor", "that no rule names", fill="choice")
    drawing.arrow((356, 392), (414, 450))
    return drawing


def folders(imports: Iterable[tuple[str, str]]) -> Drawing:
    """Folders in floors, each above all that it imports.

    Args:
        imports: The importing folder and the imported one.
    """
    below: dict[str, set[str]] = {}
    for importing, imported in imports:
        below.setdefault(importing, set()).add(imported)
        below.setdefault(imported, set())
    direct = {
        name: {lower for lower in below[name] if not _longer_way(below, name, lower)}
        for name in below
    }
    level: dict[str, int] = {}
    while len(level) < len(below):
        for name in sorted(below.keys() - level.keys()):
            if below[name] <= level.keys():
                level[name] = 1 + max((level[lower] for lower in below[name]), default=-1)
    rows, ways = _rows(direct, level)
    height = 62.0
    drawing = Drawing(height * len(rows) + 20, "Which folder imports which")
    place: dict[str, Place] = {}
    for number, row in enumerate(reversed(rows)):
        widths = [92 if name in level else 24 for name in row]
        gap = min(40.0, (WIDTH - 16 - sum(widths)) / max(1, len(row) - 1))
        x = (WIDTH - sum(widths) - gap * (len(row) - 1)) / 2
        for name, width in zip(row, widths, strict=True):
            place[name] = round(x + width / 2, 1), height * number + 34
            x += width + gap
    for way in ways:
        middles = [place[name] for name in way]
        (x, y), (to_x, to_y) = middles[0], middles[-1]
        drawing.arrow((x, y + 14), *middles[1:-1], (to_x, to_y - 14))
    for name in sorted(level):
        drawing.box(*place[name], 92, name)
    return drawing


def _longer_way(below: dict[str, set[str]], name: str, lower: str) -> bool:
    """Whether a folder imports another through a third one, too."""
    waiting, seen = list(below[name] - {lower}), set[str]()
    while waiting:
        if (other := waiting.pop()) not in seen:
            seen.add(other)
            waiting += below[other]
    return lower in seen


def _rows(
    direct: dict[str, set[str]], level: dict[str, int]
) -> tuple[list[list[str]], list[list[str]]]:
    """The names on each floor, and the way of each arrow.

    An arrow past a floor has a place of its own there. Neighbours stand near the middle of what
    they are joined to (Sugiyama et al. 1981).
    """
    rows: list[list[str]] = [[] for _ in range(max(level.values()) + 1)]
    for name in sorted(level):
        rows[level[name]].append(name)
    ways, joined = [], dict[str, list[str]]()
    for name in sorted(direct):
        for lower in sorted(direct[name]):
            between = [
                f"{name}>{lower}@{floor}" for floor in range(level[name] - 1, level[lower], -1)
            ]
            for passing in between:
                rows[int(passing.rpartition("@")[2])].append(passing)
            ways.append([name, *between, lower])
            for one, other in pairwise(ways[-1]):
                joined.setdefault(one, []).append(other)
                joined.setdefault(other, []).append(one)
    at = {name: (number + 1) / (len(row) + 1) for row in rows for number, name in enumerate(row)}
    for _ in range(60):
        for row in rows:
            row.sort(key=lambda name: sum(at[other] for other in joined[name]) / len(joined[name]))
            at |= {name: (number + 1) / (len(row) + 1) for number, name in enumerate(row)}
    return rows, ways


def imports_of_folders() -> set[tuple[str, str]]:
    """As the test of the structure finds them; single files on the ground are left out."""
    sys.path.insert(0, str(ROOT))
    from tests.test_structure import EDGES, FLOORS, folder

    names = {name for row in FLOORS for name in row}
    found = {(folder(importing), folder(imported)) for importing, imported in EDGES}
    return {(a, b) for a, b in found if a != b and {a, b} <= names}


def drawings() -> dict[str, str]:
    """The text of each file."""
    made = {
        "forward": forward_pass(),
        "conversion": conversion(),
        "folders": folders(imports_of_folders()),
    }
    return {f"{name}.svg": drawing.svg() for name, drawing in made.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in drawings().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
