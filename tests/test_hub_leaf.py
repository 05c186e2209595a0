"""The model folder keeps the rules of the hub's code loader, and loads without the package."""

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hf_bert_impl.model
from tests.model.cases import HEADS, model_and_batch, outputs

LEAF = Path(hf_bert_impl.model.__file__).parent
FILES = sorted(path for path in LEAF.glob("*.py") if path.name != "__init__.py")
ALLOWED = {"torch", "transformers", "tokenizers"} | set(sys.stdlib_module_names)
AUTO = {"BertModel": "AutoModel", "BertLMHeadModel": "AutoModelForCausalLM"}


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
    apart = {"modeling_bert", "tokenization_bert"}  # the tokenizer is an entry of its own
    assert named == {path.stem for path in FILES} - apart


def test_no_data_files():
    others = {p.name for p in LEAF.iterdir()} - {p.name for p in FILES}
    assert others <= {"__init__.py", "__pycache__"}


LOAD = """
import json, sys
import torch, transformers
sys.modules["hf_bert_impl"] = None  # as if it were not installed
names, auto, folder = json.loads(sys.argv[1])
batch = torch.load(folder + "/batch.pt")
for name in names:
    loader = getattr(transformers, auto.get(name, name.replace("Bert", "AutoModel", 1)))
    model = loader.from_pretrained(f"{folder}/{name}", trust_remote_code=True).eval()
    assert type(model).__module__.startswith("transformers_modules"), type(model)
    assert type(model).__name__ == name
    assert type(model.config).__module__.startswith("transformers_modules"), type(model.config)
    with torch.no_grad():
        first = model(**batch[name])[0]
    expected = torch.load(f"{folder}/{name}/expected.pt")
    # The sums of a product may run in another order where its numbers lie otherwise in memory.
    error = (first - expected).abs().max() / expected.abs().max()
    assert error < 2e-6, (name, float(error))
print("loaded", len(names))
"""


@pytest.mark.parametrize(
    "heads", [["BertModel"], pytest.param(HEADS[1:], marks=pytest.mark.slow)], ids=len
)
def test_loads_by_code_without_the_package(tmp_path, heads):
    batches = {}
    for head in heads:
        model, batches[head] = model_and_batch(head)
        folder = tmp_path / head
        loader = AUTO.get(head, head.replace("Bert", "AutoModel", 1))
        model.config.auto_map = {
            "AutoConfig": "configuration_bert.BertConfig",
            loader: f"modeling_bert.{head}",
        }
        model.save_pretrained(folder)
        assert json.loads((folder / "config.json").read_text())["model_type"] == "bert"
        for path in FILES:
            shutil.copy(path, folder)
        torch.save(outputs(model, batches[head])[0], folder / "expected.pt")
    torch.save(batches, tmp_path / "batch.pt")
    ran = subprocess.run(
        [sys.executable, "-c", LOAD, json.dumps([heads, AUTO, str(tmp_path)])],
        capture_output=True,
        text=True,
        env={"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert f"loaded {len(heads)}" in ran.stdout
