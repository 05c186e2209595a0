"""The model folder keeps the rules of the hub's code loader; `hub/` loads it from there."""

import ast
import re
import sys
from pathlib import Path

import pytest

import hf_bert_impl.model

LEAF = Path(hf_bert_impl.model.__file__).parent
FILES = sorted(path for path in LEAF.glob("*.py") if path.name != "__init__.py")
ALLOWED = {"torch", "transformers", "tokenizers"} | set(sys.stdlib_module_names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_imports(path):
    """Siblings by `from .name import x`; otherwise what every installation has.

    The loader finds imports by regular expression, in docstrings too.
    """
    names, real, text = {file.stem for file in FILES}, set(), path.read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= ALLOWED
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                assert node.level == 1, f"line {node.lineno}: only siblings"
                assert node.module in names, f"line {node.lineno}: `from . import` is not followed"
            else:
                assert node.module.split(".")[0] in ALLOWED
        else:
            continue
        real.add(node.lineno)
    for number, line in enumerate(text.splitlines(), start=1):
        if re.match(r"\s*(import\s+\S+\s*$|from\s+\S+\s+import\b)", line):
            assert number in real, f"{path.name}:{number} looks like an import: {line.strip()}"


def test_the_entry_names_every_file():
    """Some releases copy what the entry imports, and not what those files import in turn."""
    tree = ast.parse((LEAF / "modeling_bert.py").read_text())
    named = {
        node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level
    }
    assert named == {path.stem for path in FILES} - {"modeling_bert"}


def test_no_data_files():
    others = {p.name for p in LEAF.iterdir()} - {p.name for p in FILES}
    assert others <= {"__init__.py", "__pycache__"}
