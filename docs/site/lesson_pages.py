"""A lesson as a page: its texts, its code, and what a full run printed and drew."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
#: Whose outputs these are.
NOTE = """!!! note ""
    Below the code stands what it printed and drew in a full run, and long texts are folded.
    [Run the lesson](README.md) to see yours."""
#: Lines of an output beyond which it is folded.
FOLDED = 20
PICTURE = re.compile(r"""figures\.save\(\w+, "([\w-]+)"\)""")
TITLE = re.compile(r"^!\[(.+)\]\(figures/([\w-]+)\.png\)$", re.MULTILINE)
TABLE = re.compile(r"<table[^>]*>")


def lesson_page(file: Path) -> str:
    """The Markdown of a notebook.

    Args:
        file: A notebook of notebooks/.
    """
    notebook = json.loads(file.read_text(encoding="utf-8"))
    titles = TITLE.findall((NOTEBOOKS / "README.md").read_text(encoding="utf-8"))
    names = {name: title for title, name in titles}
    return "\n\n".join(blocks(notebook["cells"], names)) + "\n"


def blocks(cells: list[dict], titles: dict[str, str]) -> Iterator[str]:
    for number, cell in enumerate(cells):
        text = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            yield text
        else:
            yield fenced(text, "python")
            yield from map(printed, cell["outputs"])
            for name in PICTURE.findall(text):
                yield f"![{titles[name]}](figures/{name}.png)"
        if number == 0:
            yield NOTE


def printed(output: dict) -> str:
    """A text, folded where it is long, or a table, with the look of the page's own."""
    if "data" in output:
        table = TABLE.sub("<table>", "".join(output["data"]["text/html"]))
        return f'<div class="output">\n{table}\n</div>'
    lines = output["text"]
    text = fenced("".join(lines).rstrip(), "{ .text .output }")
    if len(lines) <= FOLDED:
        return text
    return f"<details>\n<summary>Output, {len(lines)} lines</summary>\n\n{text}\n\n</details>"


def fenced(text: str, kind: str) -> str:
    """A block of code, whose fence is longer than any in it."""
    longest = max((len(ticks) for ticks in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{kind}\n{text}\n{fence}"
