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
    The outputs come from a full run. Long ones are folded. [Run the lesson](README.md) to see
    yours."""
#: Longer outputs, in lines, are folded.
FOLDED = 20
#: Longer lines of an output, in characters, are wrapped, because 1,366 px do not show them.
WIDEST = 115
TABLE = re.compile(r"<table[^>]*>")
#: The first cell of a row of the table of lessons.
LESSON = re.compile(r"^\| \[[^]]+\]\((\d\d_\w+)\.ipynb\)", re.MULTILINE)


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
            code = fenced(text, "python")
            is_folded = "folded" in cell["metadata"].get("tags", [])
            yield folded(code, "Code") if is_folded else code
            for place, output in enumerate(cell["outputs"]):
                yield printed(output, picture_name(file, number, place))
        if number == 0:
            yield NOTE


def cells(file: Path) -> list[dict[str, Any]]:
    return json.loads(file.read_text(encoding="utf-8"))["cells"]


def picture_name(file: Path, cell: int, place: int) -> str:
    return f"pictures/{file.stem}-{cell}-{place}.png"


def pictures(file: Path) -> dict[str, bytes]:
    """The stored pictures of a notebook by their file names."""
    return {
        picture_name(file, number, place): base64.b64decode(output["data"]["image/png"])
        for number, cell in enumerate(cells(file))
        for place, output in enumerate(cell.get("outputs", []))
        if "image/png" in output.get("data", {})
    }


def gallery(text: str) -> str:
    """The list of lessons with the first picture of each above its name."""

    def with_picture(row: re.Match[str]) -> str:
        file = NOTEBOOKS / f"{row[1]}.ipynb"
        drawn = next(iter(pictures(file)), None)
        if drawn is None:
            return row[0]
        return row[0].replace("| [", f"| ![]({drawn}){{ .thumbnail }} [", 1)

    return LESSON.sub(with_picture, text)


def printed(output: dict[str, Any], picture: str) -> str:
    """An output as Markdown: a picture, a table in the page's style, or a text."""
    data = output.get("data", {})
    if "image/png" in data:
        return f"![{''.join(data['text/plain'])}]({picture})"
    if "text/html" in data:
        table = TABLE.sub("<table>", "".join(data["text/html"]))
        return f'<div class="output">\n{table}\n</div>'
    lines = output["text"]
    text = "".join(lines).rstrip()
    is_wide = max(map(len, text.splitlines()), default=0) > WIDEST
    kinds = ".text .output" + " .wrapped" * is_wide + " .table" * ("───" in text)
    text = fenced(text, f"{{ {kinds} }}")
    return text if len(lines) <= FOLDED else folded(text, f"Output, {len(lines)} lines")


def folded(text: str, summary: str) -> str:
    return f"<details>\n<summary>{summary}</summary>\n\n{text}\n\n</details>"


def fenced(text: str, kind: str) -> str:
    """A block of code in a fence that is longer than the fences inside."""
    longest = max((len(ticks) for ticks in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{kind}\n{text}\n{fence}"
