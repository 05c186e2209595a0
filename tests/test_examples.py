"""The examples of the docstrings, of README.md and of docs/ run as written."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import hf_bert_impl
import hf_bert_impl.conversion
from hf_bert_impl.data.masking import MaskingOptions
from tests.cli.cases import COMMANDS, options_of
from tests.encoders.cases import random_stock
from tests.support.checkpoints import SPECIAL_TOKENS, save_checkpoint
from tests.test_structure import FILES, ROOT

#: The pages for users, by their name.
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
BLOCK = re.compile(r"^```(python|bash|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
WORDS = "a anna ' s cat nap ##s kitten sleep fine film the short long ##er one somewhat . , nice to"
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


#: The modules with examples. Their text is searched, because importing all takes long.
MODULES = sorted(
    f"hf_bert_impl.{module}".removesuffix(".__init__")
    for module, path in FILES.items()
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.fixture
def checkpoints(
    tmp_path: Path, minilm_path: Path, fixtures_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A working folder with the models and files of the examples."""
    (tmp_path / "sentence-transformers").mkdir()
    (tmp_path / "sentence-transformers" / "all-MiniLM-L6-v2").symlink_to(minilm_path)
    words = (*SPECIAL_TOKENS, *WORDS.split())
    sizes = {"hidden_size": 24, "num_attention_heads": 4, "max_position_embeddings": 64}
    for name, kind in (
        ("my-squad-bert", "BertForQuestionAnswering"),
        ("my-sentiment-bert", "BertForSequenceClassification"),
        ("my-masked-bert", "BertForMaskedLM"),
        ("reranker", "BertForSequenceClassification"),
        ("google-bert/bert-base-cased", "BertForPreTraining"),
    ):
        labels = {"num_labels": 1} if name == "reranker" else {}
        folder = save_checkpoint(tmp_path / name, kind, words=words, **sizes, **labels)
        tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(folder, model_max_length=64)
        tokenizer.save_pretrained(folder)
    for name, kind in (
        ("sentence-transformers/all-mpnet-base-v2", "MPNetModel"),
        ("BAAI/bge-reranker-v2-m3", "XLMRobertaForSequenceClassification"),
    ):
        random_stock(kind, vocab_size=len(words)).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    shutil.make_archive(str(tmp_path / "uncased_L-12_H-768_A-12"), "zip", fixtures_dir / "tf1")
    (tmp_path / "texts.txt").write_text("A cat naps.\nA kitten sleeps.\n")
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str, checkpoints: Path) -> None:
    module = importlib.import_module(name)
    names = {key: getattr(hf_bert_impl, key) for key in hf_bert_impl.__all__}
    names |= {"torch": torch, "Path": Path, "MaskingOptions": MaskingOptions} | vars(module)
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    for test in doctest.DocTestFinder().find(module, extraglobs=names):
        assert "+SKIP" not in test.docstring, f"{test.name} is not run"
        runner.run(test)
    result = runner.summarize(verbose=False)
    assert result.attempted and not result.failed, result


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_blocks_of_all_pages_in_one_folder(checkpoints: Path) -> None:
    """As a reader runs them, README first. `sh` marks slow blocks and downloads."""
    shutil.rmtree("reranker")  # a page trains it
    paths = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.getenv("PYTHONPATH")))),
    }
    for page, text in PAGES.items():
        names: dict[str, Any] = {}
        try:
            for kind, block in BLOCK.findall(text):
                if kind == "python":
                    exec(compile(block, page, "exec"), names)
                elif kind == "bash":
                    subprocess.run(["bash", "-euc", block], env=os.environ | paths, check=True)
        finally:
            hf_bert_impl.unregister()


def test_code_of_all_pages() -> None:
    """No line is cut at 80 columns. Every command exists, with its options."""
    blocks = [block for page in PAGES.values() for _, block in BLOCK.findall(page)]
    assert [line for block in blocks for line in block.splitlines() if len(line) > 80] == []
    whole = "\n".join(blocks).replace("\\\n", " ")
    for line in whole.splitlines():
        if line.startswith("hf-bert "):
            words = shlex.split(line, comments=True)[1:]
            name = max(c for c in (words[0], " ".join(words[:2])) if c in COMMANDS)
            given = {word.split("=")[0] for word in words if word.startswith("--")}
            assert given <= {*options_of(name)}, line
