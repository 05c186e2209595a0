"""The outputs that stay in git after a full run: texts, tables and pictures of `figures.show`.

Execution counts, warnings, progress bars and terminal colours differ between runs, and paths
between machines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
STYLE = re.compile(r"<style.*?</style>\s*", re.DOTALL)
#: Text that a progress bar has overwritten.
OVERWRITTEN = re.compile(r"^[^\n]*\r(?!\n)", re.MULTILINE)
SPACES = re.compile(r" +$", re.MULTILINE)
#: An absolute path of two or more names, not part of a URL or a relative path.
PATH = re.compile(r"(?<![\w.:/~…])/(?:[\w.+-]+/)+([\w.+-]*)")


def cleaned(notebook: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy of a notebook with the outputs to store.

    Args:
        notebook: Jupyter's JSON after a run without errors.
    """
    about = {"kernelspec": notebook["metadata"]["kernelspec"], "language_info": {"name": "python"}}
    return notebook | {"metadata": about, "cells": [_cell(cell) for cell in notebook["cells"]]}


def _cell(cell: dict[str, Any]) -> dict[str, Any]:
    cell = cell | {"source": _lines(cell["source"])}
    if cell["cell_type"] != "code":
        return cell
    metadata = {key: value for key, value in cell["metadata"].items() if key != "execution"}
    parts: list[tuple[str, Any]] = []
    for kind, text in _parts(cell["outputs"]):
        if kind == "text" and parts and parts[-1][0] == "text":
            parts[-1] = kind, parts[-1][1] + text
        else:
            parts.append((kind, text))
    outputs = [_output(kind, text) for kind, text in parts]
    return cell | {"execution_count": None, "metadata": metadata, "outputs": outputs}


def _parts(outputs: list[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The kind of each output, and its content."""
    for output in outputs:
        if output["output_type"] == "stream":
            if output["name"] == "stdout":
                yield "text", OVERWRITTEN.sub("", _plain(output["text"]))
            continue
        if "image/png" in output["data"]:
            yield "picture", output["data"]
            continue
        page = "".join(output["data"].get("text/html", ""))
        if "<iframe" in page:  # as it is: its data are base64, where a path may seem to be
            yield "html", page
            continue
        data = {kind: _plain(text) for kind, text in output["data"].items() if "text" in kind}
        html = data.get("text/html", "")
        if "<table" in html and "<progress" not in html:
            yield "html", STYLE.sub("", html)
        elif not data.get("text/plain", "<").startswith("<"):  # not an object's default repr
            yield "text", data["text/plain"].rstrip("\n") + "\n"


def _output(kind: str, text: Any) -> dict[str, Any]:
    if kind != "text":
        data = text if kind == "picture" else {"text/html": _lines(text)}
        return {"data": data, "metadata": {}, "output_type": "display_data"}
    text = SPACES.sub("", text).strip("\n") + "\n"
    return {"name": "stdout", "output_type": "stream", "text": _lines(text)}


def _lines(text: str | list[str]) -> list[str]:
    return "".join(text).splitlines(keepends=True)


def _plain(text: str | list[str]) -> str:
    """A text without colours. Of each path only the last name stays."""
    return PATH.sub(r"…/\1", COLOUR.sub("", "".join(text)))
