"""A lesson as a page: its texts, its code, and its stored outputs."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
NOTE = """!!! note ""
    The outputs are those of a full run; long ones are folded. [Run the lesson](README.md) to see
    yours."""
#: Longer outputs, in lines, are folded.
FOLDED = 20
PICTURE = re.compile(r"""figures\.save\(\w+, "([\w-]+)"\)""")
TABLE = re.compile(r"<table[^>]*>")
#: The first cell of a row of the table of lessons.
LESSON = re.compile(r"^\| \[[^]]+\]\((\d\d_\w+)\.ipynb\)", re.MULTILINE)
ENDINGS = {"image/png": "png", "image/svg+xml": "svg"}


def lesson_page(file: Path) -> str:
    """The Markdown of a notebook.

    Args:
        file: A notebook of notebooks/.
    """
    return "\n\n".join(blocks(file)) + "\n"


def blocks(file: Path) -> Iterator[str]:
    for number, cell in enumerate(cells(file)):
        text = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            yield text
        else:
            yield (
                folded(fenced(text, "python"), "Code")
                if is_helper(cell)
                else fenced(text, "python")
            )
            for place, output in enumerate(cell["outputs"]):
                yield printed(output, picture_name(file, number, place, output))
            for name in PICTURE.findall(text):
                if (NOTEBOOKS / f"figures/{name}.png").exists():
                    yield f"![{name}](figures/{name}.png)"
        if number == 0:
            yield NOTE


def cells(file: Path) -> list[dict[str, Any]]:
    return json.loads(file.read_text(encoding="utf-8"))["cells"]


def is_helper(cell: dict[str, Any]) -> bool:
    """Whether the notebook hides the cell's code, as it does with drawing code."""
    tags = cell.get("metadata", {}).get("tags", [])
    hidden = cell.get("metadata", {}).get("jupyter", {}).get("source_hidden", False)
    return hidden or "hide-input" in tags or "folded" in tags


def picture_name(file: Path, cell: int, place: int, output: dict[str, Any]) -> str | None:
    """The file name of a stored picture; None for another output."""
    for kind, ending in ENDINGS.items():
        if kind in output.get("data", {}):
            return f"pictures/{file.stem}-{cell}-{place}.{ending}"
    return None


def pictures(file: Path) -> dict[str, bytes]:
    """The stored pictures of a notebook by their file names."""
    result = {}
    for number, cell in enumerate(cells(file)):
        for place, output in enumerate(cell.get("outputs", [])):
            if name := picture_name(file, number, place, output):
                data = "".join(output["data"][next(k for k in ENDINGS if k in output["data"])])
                result[name] = data.encode() if name.endswith("svg") else base64.b64decode(data)
    return result


def gallery(text: str) -> str:
    """The list of lessons with the first picture of each above its name."""

    def with_picture(row: re.Match[str]) -> str:
        file = NOTEBOOKS / f"{row[1]}.ipynb"
        drawn = next(iter(pictures(file)), None) or next(
            (f"figures/{path.name}" for path in sorted(NOTEBOOKS.glob(f"figures/{row[1][:2]}_*"))),
            None,
        )
        if drawn is None:
            return row[0]
        return row[0].replace("| [", f"| ![]({drawn}){{ .thumbnail }} [", 1)

    return LESSON.sub(with_picture, text)


def printed(output: dict[str, Any], picture: str | None) -> str:
    """A picture, a text, folded where it is long, or a table, with the look of the page's own."""
    if picture:
        title = "".join(output["data"].get("text/plain", "")).strip("'\"")
        return f"![{title if '<' not in title else ''}]({picture})"
    data = output.get("data", {})
    if "text/html" in data:
        table = TABLE.sub("<table>", "".join(data["text/html"]))
        return f'<div class="output">\n{table}\n</div>'
    lines = output.get("text") or data.get("text/plain") or []
    text = fenced("".join(lines).rstrip(), "{ .text .output }")
    return text if len(lines) <= FOLDED else folded(text, f"Output, {len(lines)} lines")


def folded(text: str, summary: str) -> str:
    return f"<details>\n<summary>{summary}</summary>\n\n{text}\n\n</details>"


def fenced(text: str, kind: str) -> str:
    """A block of code, whose fence is longer than any in it."""
    longest = max((len(ticks) for ticks in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{kind}\n{text}\n{fence}"
