"""The model folder keeps the rules of the hub's code loader; `hub/` loads it from there."""

import re
import sys
from pathlib import Path

import pytest

import hf_bert_impl.model

LEAF = Path(hf_bert_impl.model.__file__).parent
FILES = sorted(path for path in LEAF.glob("*.py") if path.name != "__init__.py")
SIBLINGS = {f".{path.stem}" for path in FILES}
ALLOWED = {"torch", "transformers", "tokenizers"} | set(sys.stdlib_module_names)


#: As the loader finds imports, in docstrings too; and `import x as y`, which it does not see.
IMPORT = re.compile(r"^\s*(?:from\s+(\S+)\s+import\b|import\s+(\S+))", re.MULTILINE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_imports(path):
    """Siblings by `from .name import x`; otherwise what every installation has."""
    for module, plain in IMPORT.findall(path.read_text()):
        assert module in SIBLINGS or (module or plain).split(".")[0] in ALLOWED


def test_the_entry_names_every_file():
    """Some releases copy what the entry imports, and not what those files import in turn."""
    named = {module for module, _ in IMPORT.findall((LEAF / "modeling_bert.py").read_text())}
    assert named >= SIBLINGS - {".modeling_bert"}


def test_no_data_files():
    others = {p.name for p in LEAF.iterdir()} - {p.name for p in FILES}
    assert others <= {"__init__.py", "__pycache__"}
