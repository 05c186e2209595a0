"""The notebooks in git have the outputs of a full run of `make notebooks`, and no others."""

import json
import re
from pathlib import Path

import pytest

from lessons import outputs

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


FILES = sorted(NOTEBOOKS.glob("*.ipynb"))
ABSOLUTE_PATH = re.compile(r"""(?:^|[\s"'(=])(?:/|[A-Z]:\\)\w[\w.-]*[/\\]\w""")

each_notebook = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


@each_notebook
def test_outputs_are_those_of_make_notebooks(file):
    """Jupyter's "clear all outputs" removes others."""
    notebook = json.loads(file.read_text(encoding="utf-8"))
    for cell, kept in zip(notebook["cells"], outputs.cleaned(notebook)["cells"], strict=True):
        source = {"source": cell["source"]}
        assert cell == kept | source, f"not from a full run of make notebooks: {cell['id']}"
        for output in cell.get("outputs", ()):
            shown = json.dumps(output, ensure_ascii=False)
            assert output["output_type"] in ("stream", "display_data")
            assert not ABSOLUTE_PATH.search(shown), cell["id"]
            is_picture = "image/png" in output.get("data", {}) or "<iframe" in shown
            longest = 200_000 if is_picture else 40_000
            assert len(shown) < longest, f"{cell['id']} prints too much for a page"
