"""The notebooks in git have the outputs of a full run of `make notebooks`, and no others."""

import base64
import html
import json
import re
import shutil
import subprocess
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


#: The interactive page in an iframe of a notebook, and the data in that page.
PAGE = re.compile(r'<iframe srcdoc="([^"]*)"')
PAGE_DATA = re.compile(r'<script type="application/json" id="attention-data">(.*?)</script>', re.S)
BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")


def stored_pages():
    for file in FILES:
        for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
            for output in cell.get("outputs", ()):
                shown = "".join(output.get("data", {}).get("text/html", ""))
                for page in PAGE.findall(shown):
                    yield pytest.param(html.unescape(page), id=f"{file.stem}-{cell['id']}")


each_page = pytest.mark.parametrize("page", list(stored_pages()))


@each_page
def test_stored_pages_have_all_weights(page):
    """Nothing in the data was taken for a path."""
    data = json.loads(PAGE_DATA.search(page)[1])
    size = len(data["tokens"])
    for layer in data["layers"]:
        weights = base64.b64decode(layer["weights"], validate=True)
        assert len(weights) == 2 * len(layer["heads"]) * size**2


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs Chromium or Chrome")
@each_page
def test_stored_pages_are_drawn(page, write, tmp_path):
    file = write("page.html", page)
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/user"]
    command = [BROWSER, *options, "--virtual-time-budget=5000", "--dump-dom", file.as_uri()]
    drawn = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    data = json.loads(PAGE_DATA.search(page)[1])
    # Each token on both sides, and a button for each head of the chosen layer.
    assert drawn.count('role="option"') == 2 * len(data["tokens"])
    assert drawn.count('aria-label="head ') >= len(data["layers"][0]["heads"])
