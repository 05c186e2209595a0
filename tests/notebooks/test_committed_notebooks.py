"""What is in git: notebooks with outputs of full runs, asserted claims, sources and pictures."""

import ast
import json
import re
from pathlib import Path

import pytest

from lessons import outputs

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
FILES = sorted(NOTEBOOKS.glob("*.ipynb"))
ABSOLUTE_PATH = re.compile(r"""(?:^|[\s"'(=])(?:/|[A-Z]:\\)\w[\w.-]*[/\\]\w""")

each_notebook = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def cells(file, kind):
    notebook = json.loads(file.read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def text(cell):
    return "".join(cell["source"])


def code(file):
    return "\n".join(text(cell) for cell in cells(file, "code"))


def test_there_are_notebooks():
    assert FILES


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


@each_notebook
def test_cell_names_are_stable(file):
    names = [cell["id"] for kind in ("code", "markdown") for cell in cells(file, kind)]
    assert len(names) == len(set(names))


@each_notebook
def test_claims_are_asserted(file):
    asserted = [node for node in ast.walk(ast.parse(code(file))) if isinstance(node, ast.Assert)]
    assert len(asserted) >= 3


@each_notebook
def test_sources_are_named(file):
    prose = "\n".join(text(cell) for cell in cells(file, "markdown"))
    # A paper is named as "(Bahdanau et al., 2015, section 3.1)".
    assert re.search(r"\b(19|20)\d\d, (section|sections|table|figure|equation|appendix)\b", prose)


@each_notebook
def test_pictures_are_in_the_readme(file):
    readme = (NOTEBOOKS / "README.md").read_text(encoding="utf-8")
    assert f"({file.name})" in readme
    drawn = set(re.findall(r"""figures\.save\(\w+, "([\w-]+)"\)""", code(file)))
    assert drawn and all(name.startswith(file.stem[:2]) for name in drawn)
    shown = set(re.findall(rf"\(figures/({file.stem[:2]}_[\w-]+)\.png\)", readme))
    assert shown == drawn


def test_every_picture_of_the_readme_exists():
    readme = (NOTEBOOKS / "README.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\((figures/[^)]+)\)", readme))
    assert shown == {f"figures/{path.name}" for path in (NOTEBOOKS / "figures").iterdir()}
