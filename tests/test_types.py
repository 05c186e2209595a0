"""What mypy and pyright know of a program that uses the package as installed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """\
import hf_bert_impl as b

reveal_type(b.BertModel.from_pretrained("x"))
reveal_type(b.BertForPreTraining.from_pretrained("x"))
reveal_type(b.BertForMaskedLM.from_pretrained("x"))
reveal_type(b.BertLMHeadModel.from_pretrained("x"))
reveal_type(b.BertForNextSentencePrediction.from_pretrained("x"))
reveal_type(b.BertForSequenceClassification.from_pretrained("x", num_labels=3))
reveal_type(b.BertForMultipleChoice.from_pretrained("x"))
reveal_type(b.BertForTokenClassification.from_pretrained("x"))
reveal_type(b.BertForQuestionAnswering.from_pretrained("x"))
reveal_type(b.BertModel.from_pretrained("x", output_loading_info=True))
reveal_type(b.BertModel(b.BertConfig()))
reveal_type(b.BertModel.from_pretrained("x").config)
reveal_type(b.BertConfig.from_pretrained("x"))
reveal_type(b.BertTokenizer.from_pretrained("x"))
reveal_type(b.TextEncoder.from_pretrained("x"))
reveal_type(b.TextEncoder.from_pretrained("x").encode(["a"], convert_to_tensor=True))
reveal_type(b.TextEncoder.from_pretrained("x").encode("a", output_value="token_embeddings"))
reveal_type(b.TextEncoder.from_pretrained("x").encode_query(["a"], convert_to_numpy=False))
reveal_type(b.load_any("x"))
reveal_type(b.register())
"""
TYPES = [
    *("BertModel", "BertForPreTraining", "BertForMaskedLM", "BertLMHeadModel"),
    *("BertForNextSentencePrediction", "BertForSequenceClassification", "BertForMultipleChoice"),
    *("BertForTokenClassification", "BertForQuestionAnswering"),
    *("tuple[BertModel, dict[str, Any]]", "BertModel", "BertConfig", "BertConfig"),
    *("BertTokenizer", "TextEncoder", "Tensor", "Tensor", "list[Tensor]"),
    *("PreTrainedModel", "None"),
]


@pytest.fixture
def program(tmp_path):
    if any("editable" in getattr(finder, "__name__", "").lower() for finder in sys.meta_path):
        # As `pip install -e .` made it before: type checkers do not run import hooks.
        pytest.skip("the package is installed by an import hook; run `pip install -e .` again")
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return file


def revealed(program, pattern, *command):
    """The types that a checker gives, by line, without the names of modules."""
    # Nothing but the installation may say where the package is.
    environment = {k: v for k, v in os.environ.items() if k not in ("MYPYPATH", "PYTHONPATH")}
    done = subprocess.run(
        [*command, program.name],
        cwd=program.parent,
        env=environment,
        capture_output=True,
        text=True,
    )
    found = re.findall(pattern, done.stdout)
    assert len(found) == len(TYPES), done.stdout + done.stderr
    return [re.sub(r"\b(?:\w+\.)+(?=\w)", "", kind) for kind in found]


@pytest.mark.timeout(900)
def test_mypy(program):
    command = (sys.executable, "-m", "mypy", "--cache-dir", program.parent)
    # mypy follows transformers too; what it finds there is not asked.
    assert revealed(program, r'Revealed type is "(.*)"', *command) == TYPES


@pytest.mark.timeout(900)
def test_pyright(program):
    checker = shutil.which("basedpyright", path=str(Path(sys.executable).parent))
    if checker is None:
        pytest.skip("basedpyright is not installed: pip install 'hf_bert_impl[dev]'")
    pattern = r'information: Type of ".*" is "(.*)"'
    assert revealed(program, pattern, checker, "--pythonpath", sys.executable) == TYPES
