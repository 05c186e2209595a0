"""What a run of `make notebooks` leaves in a notebook, and that nothing else is in git."""

import json
import re
from pathlib import Path

import pytest

from lessons import outputs

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
TABLE = "<div>\n<style scoped>th { top: 0 }</style>\n<table><td>1</td></table>\n</div>"


def notebook(*written, source="1"):
    cell = {"cell_type": "code", "id": "one", "source": source, "outputs": list(written)}
    cell |= {"execution_count": 3, "metadata": {"execution": {"begun": 1}, "tags": ["a"]}}
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    about = {"kernelspec": kernel, "language_info": {"name": "python", "version": "3.11.2"}}
    return {"cells": [cell], "metadata": about, "nbformat": 4, "nbformat_minor": 5}


def stream(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def shown(**data):
    data = {f"{kind.replace('_', '/')}": text for kind, text in data.items()}
    return {"output_type": "display_data", "data": data, "metadata": {}}


def kept(*written):
    (cell,) = outputs.cleaned(notebook(*written))["cells"]
    return ["".join(o["text"] if "text" in o else o["data"]["text/html"]) for o in cell["outputs"]]


@pytest.mark.parametrize(
    ("written", "texts"),
    [
        ([stream("a\n"), stream("careful\n", "stderr"), stream("b\n")], ["a\nb\n"]),
        ([stream("10 %\r20 %\rdone\n")], ["done\n"]),
        ([shown(text_html=TABLE, text_plain="1")], ["<div>\n<table><td>1</td></table>\n</div>"]),
        ([shown(text_html="<table><progress></table>", text_plain="<HTML object>")], []),
        ([shown(image_png="iVBO", text_plain="<Figure size 900x400>")], []),
        ([stream("in /tmp/x_1/a.bin or /tmp/x_1/\n")], ["in …/a.bin or …/\n"]),
        (
            [stream("https://a.org/b and/or layer/0/key\n")],
            ["https://a.org/b and/or layer/0/key\n"],
        ),
    ],
)
def test_texts_and_tables_stay(written, texts):
    assert kept(*written) == texts


def test_what_differs_between_runs_goes():
    once = outputs.cleaned(notebook(stream("a\nb\n")))
    assert outputs.cleaned(once) == once
    (cell,) = once["cells"]
    assert cell["execution_count"] is None and cell["metadata"] == {"tags": ["a"]}
    assert cell["outputs"][0]["text"] == ["a\n", "b\n"]
    assert once["metadata"]["language_info"] == {"name": "python"}


FILES = sorted(NOTEBOOKS.glob("*.ipynb"))
ABSOLUTE_PATH = re.compile(r"""(?:^|[\s"'(=])(?:/|[A-Z]:\\)\w[\w.-]*[/\\]\w""")

each_notebook = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


@each_notebook
def test_outputs_are_those_of_make_notebooks(file):
    """Other outputs, as Jupyter saves them, are taken away by its "clear all outputs"."""
    notebook = json.loads(file.read_text(encoding="utf-8"))
    for cell, kept in zip(notebook["cells"], outputs.cleaned(notebook)["cells"], strict=True):
        source = {"source": cell["source"]}
        assert cell == kept | source, f"not from a full run of make notebooks: {cell['id']}"
        for output in cell.get("outputs", ()):
            shown = json.dumps(output, ensure_ascii=False)
            assert output["output_type"] in ("stream", "display_data")
            assert not ABSOLUTE_PATH.search(shown), cell["id"]
            assert len(shown) < 40_000, f"{cell['id']} prints too much for a page"
