"""The model folder keeps the rules of the hub's code loader; `hub/` loads it from there."""

import ast
import re
import sys
from pathlib import Path

import pytest

import hf_bert_impl.model

LEAF = Path(hf_bert_impl.model.__file__).parent
FILES = sorted(path for path in LEAF.glob("*.py") if path.name != "__init__.py")
SIBLINGS = {f".{path.stem}" for path in FILES}
ALLOWED = {"torch", "transformers", "tokenizers"} | set(sys.stdlib_module_names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_imports(path):
    """Siblings by `from .name import x`; otherwise what every installation has.

    The loader finds imports by regular expression, in docstrings too.
    """
    text, real = path.read_text(), set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = ["." * node.level + (node.module or "")]
        else:
            continue
        real.add(node.lineno)
        for module in modules:
            is_allowed = module in SIBLINGS or module.split(".")[0] in ALLOWED
            assert is_allowed, f"line {node.lineno}: {module}"
    for number, line in enumerate(text.splitlines(), start=1):
        if re.match(r"\s*(import\s+\S+\s*$|from\s+\S+\s+import\b)", line):
            assert number in real, f"line {number} looks like an import: {line.strip()}"


def test_the_entry_names_every_file():
    """Some releases copy what the entry imports, and not what those files import in turn."""
    tree = ast.parse((LEAF / "modeling_bert.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    named = {f".{node.module}" for node in imports if node.level}
    assert named == SIBLINGS - {".modeling_bert"}


def test_no_data_files():
    others = {p.name for p in LEAF.iterdir()} - {p.name for p in FILES}
    assert others <= {"__init__.py", "__pycache__"}
