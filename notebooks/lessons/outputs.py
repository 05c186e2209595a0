"""What stays in git of what the cells of a full run print: texts and tables.

Pictures are files of `figures/` already. Numbers and times of cells, warnings, progress bars and
colours of a terminal would change with every run and say nothing, and paths belong to one machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
STYLE = re.compile(r"<style.*?</style>\s*", re.DOTALL)
#: What was drawn over in the same line.
DRAWN_OVER = re.compile(r"^[^\n]*\r(?!\n)", re.MULTILINE)
SPACES = re.compile(r" +$", re.MULTILINE)
#: An absolute path of two names or more; no part of an address or of a relative path.
PATH = re.compile(r"(?<![\w.:/~…])/(?:[\w.+-]+/)+([\w.+-]*)")


def cleaned(notebook: dict[str, Any]) -> dict[str, Any]:
    """A notebook with those outputs that stay.

    Args:
        notebook: As Jupyter's JSON has it, after a run without errors.

    Returns:
        A new one. What is not a text or a table is the same after each run.
    """
    about = {"kernelspec": notebook["metadata"]["kernelspec"], "language_info": {"name": "python"}}
    return notebook | {"metadata": about, "cells": [_cell(cell) for cell in notebook["cells"]]}


def _cell(cell: dict[str, Any]) -> dict[str, Any]:
    cell = cell | {"source": _lines(cell["source"])}
    if cell["cell_type"] != "code":
        return cell
    metadata = {key: value for key, value in cell["metadata"].items() if key != "execution"}
    parts: list[tuple[str, str]] = []
    for kind, text in _texts(cell["outputs"]):
        if kind == "text" and parts and parts[-1][0] == "text":
            parts[-1] = kind, parts[-1][1] + text
        else:
            parts.append((kind, text))
    outputs = [_output(kind, text) for kind, text in parts]
    return cell | {"execution_count": None, "metadata": metadata, "outputs": outputs}


def _texts(outputs: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """The kind, text or table, of each output, and what it says."""
    for output in outputs:
        if output["output_type"] == "stream":
            if output["name"] == "stdout":
                yield "text", DRAWN_OVER.sub("", _plain(output["text"]))
            continue
        data = {kind: _plain(text) for kind, text in output["data"].items() if "text" in kind}
        html = data.get("text/html", "")
        if "<table" in html and "<progress" not in html:
            yield "table", STYLE.sub("", html)
        elif not data.get("text/plain", "<").startswith("<"):  # an object that names its type
            yield "text", data["text/plain"].rstrip("\n") + "\n"


def _output(kind: str, text: str) -> dict[str, Any]:
    if kind == "table":
        data = {"text/html": _lines(text)}
        return {"data": data, "metadata": {}, "output_type": "display_data"}
    text = SPACES.sub("", text).strip("\n") + "\n"
    return {"name": "stdout", "output_type": "stream", "text": _lines(text)}


def _lines(text: str | list[str]) -> list[str]:
    return "".join(text).splitlines(keepends=True)


def _plain(text: str | list[str]) -> str:
    """A text without colours, and of paths the last name."""
    return PATH.sub(r"…/\1", COLOUR.sub("", "".join(text)))
