"""The notebooks in git: names of the package exist, outputs are a full run's, text quotes them."""

import ast
import base64
import html
import importlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lessons import outputs

FILES = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
ABSOLUTE_PATH = re.compile(r"""(?:^|[\s"'(=])(?:/|[A-Z]:\\)\w[\w.-]*[/\\]\w""")
#: The interactive page in an iframe of a notebook, and the data in that page.
PAGE = re.compile(r'<iframe srcdoc="([^"]*)"')
PAGE_DATA = re.compile(r'<script type="application/json" id="attention-data">(.*?)</script>', re.S)
BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
#: Formulas, code, links, solutions, lists of sources, and places in papers.
NOT_QUOTED = re.compile(
    r"\$\$.*?\$\$|\$.*?\$|```.*?```|`[^`]*`|\]\([^)]*\)|<details>.*?</details>"
    r"|#+ (?:Sources|Exercises).*|(?:sections?|figures?|equations?|tables?) [\d. and]+",
    re.DOTALL,
)
QUOTED = re.compile(r"(?<![\w.,-])\d[\d,]*\.\d+(?![\w.])")
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
#: Billions of words of BERT's training (Devlin et al., 2019), and a version of TensorFlow.
ELSEWHERE = {"3.3", "1.15"}

each_notebook = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def load(file):
    return json.loads(file.read_text(encoding="utf-8"))


def sources(file, kind):
    return ["".join(cell["source"]) for cell in load(file)["cells"] if cell["cell_type"] == kind]


def stored(file):
    """The outputs, each with its cell's id and its HTML."""
    for cell in load(file)["cells"]:
        for output in cell.get("outputs", ()):
            yield cell["id"], output, "".join(output.get("data", {}).get("text/html", ""))


@each_notebook
def test_names_of_the_package(file):
    """`make notebooks` runs the rest."""
    for source in sources(file, "code"):
        lines = [line for line in source.splitlines() if not line.lstrip().startswith(("%", "!"))]
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("hf_bert_impl"):
                for name in [alias.name for alias in node.names]:
                    if not hasattr(importlib.import_module(node.module), name):
                        importlib.import_module(f"{node.module}.{name}")  # a module


@each_notebook
def test_outputs_are_those_of_make_notebooks(file):
    """Jupyter's "clear all outputs" removes others."""
    notebook = load(file)
    for cell, kept in zip(notebook["cells"], outputs.cleaned(notebook)["cells"], strict=True):
        source = {"source": cell["source"]}
        assert cell == kept | source, f"not from a full run of make notebooks: {cell['id']}"
    for cell_id, output, page in stored(file):
        shown = json.dumps(output, ensure_ascii=False)
        assert output["output_type"] in ("stream", "display_data")
        assert not ABSOLUTE_PATH.search(shown), cell_id
        is_picture = "image/png" in output.get("data", {}) or "<iframe" in page
        longest = 200_000 if is_picture else 40_000
        assert len(shown) < longest, f"{cell_id} prints too much for a page"


def stored_pages():
    for file in FILES:
        for cell_id, _, shown in stored(file):
            for page in PAGE.findall(shown):
                yield pytest.param(html.unescape(page), id=f"{file.stem}-{cell_id}")


each_page = pytest.mark.parametrize("page", list(stored_pages()))


@each_page
def test_stored_pages_have_all_weights(page):
    """Nothing in the data was taken for a path."""
    data = json.loads(PAGE_DATA.search(page)[1])
    for layer in data["layers"]:
        weights = base64.b64decode(layer["weights"], validate=True)
        assert len(weights) == 2 * len(layer["heads"]) * len(data["tokens"]) ** 2


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


@each_notebook
def test_quoted_numbers_are_stored(file):
    """Decimal ones, in the outputs or the code, also in percent and in millions."""
    texts = sources(file, "code")
    for _, output, page in stored(file):
        table = "" if "<iframe" in page else page
        texts += ["".join(output.get("text", "")), re.sub(r"<[^>]*>", " ", table)]
    numbers = {abs(float(it.replace(",", ""))) for text in texts for it in NUMBER.findall(text)}
    known = {value * scale for value in numbers for scale in (1, 100, 1e-6)}
    prose = NOT_QUOTED.sub(" ", "\n".join(sources(file, "markdown")))
    for quote in {*QUOTED.findall(prose)} - ELSEWHERE:
        value, digits = float(quote.replace(",", "")), len(quote.partition(".")[2])
        assert any(abs(value - other) <= 0.5 * 10**-digits + 1e-9 for other in known), quote
