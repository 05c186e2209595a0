"""The names that the notebooks import from the package exist. `make notebooks` runs them whole."""

import ast
import importlib
import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def imports(notebook):
    """The module and the name of each import from the package."""
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            lines = [line for line in cell["source"] if not line.lstrip().startswith(("%", "!"))]
            for node in ast.walk(ast.parse("".join(lines))):
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith("hf_bert_impl"):
                    yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_names_of_the_package(notebook):
    for module, name in imports(notebook):
        if not hasattr(importlib.import_module(module), name):
            importlib.import_module(f"{module}.{name}")  # a module of the package
