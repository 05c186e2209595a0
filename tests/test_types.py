"""What mypy and pyright know of programs that use the package as installed."""

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
reveal_type(b.BertForSequenceClassification.from_pretrained("x", num_labels=3))
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
    *("BertModel", "BertForPreTraining", "BertForMaskedLM", "BertForSequenceClassification"),
    *("tuple[BertModel, dict[str, Any]]", "BertModel", "BertConfig", "BertConfig"),
    *("BertTokenizer", "TextEncoder", "Tensor", "Tensor", "list[Tensor]"),
    *("PreTrainedModel", "None"),
]
TYPICAL = """
from typing import Any, assert_type

import numpy as np
from torch import Tensor

from hf_bert_impl import TextEncoder

encoder = TextEncoder.from_pretrained("folder", truncate_dim=7, revision="main")
assert_type(encoder, TextEncoder)
texts = ["a", "b"]
assert_type(encoder.encode(texts), np.ndarray)
assert_type(encoder.encode(np.array(texts), "query", None, 32), np.ndarray)
assert_type(encoder.encode_query(texts, normalize_embeddings=True), np.ndarray)
assert_type(encoder.encode(texts, "query", convert_to_tensor=True), Tensor)
assert_type(encoder.encode(texts, convert_to_numpy=False), list[Tensor])
assert_type(encoder.encode("a", convert_to_numpy=False), Tensor)
assert_type(encoder.encode(texts, output_value="token_embeddings"), list[Tensor])
assert_type(encoder.encode(texts, output_value=None), list[dict[str, Tensor]])
assert_type(encoder.encode("a", output_value=None), dict[str, Tensor])
as_tensor: bool = bool(texts)
assert_type(encoder.encode(texts, convert_to_tensor=as_tensor), Any)

async def awaited() -> None:
    assert_type(await encoder.encode_async(texts, "query", truncate_dim=7), np.ndarray)
    assert_type(await encoder.encode_async(texts, convert_to_numpy=False), list[Tensor])

vectors = encoder.encode(texts)
assert_type(encoder.similarity(vectors, encoder.encode(texts, convert_to_tensor=True)), Tensor)
encoder.max_seq_length = encoder.max_length = 7
assert_type(encoder.to("cpu"), TextEncoder)
"""
#: mypy does not read these: they are most of its time, and none of our types depends on them.
UNREAD = """
[mypy-ray.*,peft.*,torch._dynamo.*,torch._inductor.*,torch.distributed.*,torch.fx.*,torch.onnx.*]
follow_imports = skip
[mypy-transformers.generation.*,transformers.integrations.*,transformers.models.*]
follow_imports = skip
"""
WRONG = (
    "encoder.encode(5)",
    "encoder.encode(texts, 'query', 32)",
    "encoder.encode(texts, normalise=True)",
    "encoder.encode(texts, convert_to_tensor=True).argpartition(3)",
)


@pytest.fixture
def program(tmp_path):
    if any("editable" in getattr(finder, "__name__", "").lower() for finder in sys.meta_path):
        # As `pip install -e .` made it before: type checkers do not run import hooks.
        pytest.skip("the package is installed by an import hook; run `pip install -e .` again")
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return file


def told(folder, *command):
    """What a checker says."""
    # Nothing but the installation may say where the package is.
    environment = {k: v for k, v in os.environ.items() if k not in ("MYPYPATH", "PYTHONPATH")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return done.stdout + done.stderr


def revealed(said, pattern):
    """The types that a checker gives, by line, without the names of modules."""
    found = re.findall(pattern, said)
    assert len(found) == len(TYPES), said
    return [re.sub(r"\b(?:\w+\.)+(?=\w)", "", kind) for kind in found]


@pytest.mark.timeout(900)
def test_mypy(program):
    calls = "\n".join((TYPICAL, *WRONG))
    program.with_name("calls.py").write_text(calls)
    (program.parent / "mypy.ini").write_text(f"[mypy]\n{UNREAD}")
    # What else it follows takes most of its time, so it reads both programs in one run.
    command = (sys.executable, "-m", "mypy", "--cache-dir", os.devnull, program.name, "calls.py")
    said = told(program.parent, *command)
    assert revealed(said, r'Revealed type is "(.*)"') == TYPES
    last = len(calls.splitlines())
    # What mypy finds in transformers itself is not asked.
    lines = {int(line) for line in re.findall(r"^calls\.py:(\d+): error: ", said, re.MULTILINE)}
    assert lines == set(range(last - len(WRONG) + 1, last + 1)), said


@pytest.mark.timeout(900)
def test_pyright(program):
    checker = shutil.which("basedpyright", path=str(Path(sys.executable).parent))
    if checker is None:
        pytest.skip("basedpyright is not installed: pip install -e '.[dev]'")
    said = told(program.parent, checker, "--pythonpath", sys.executable, program.name)
    assert revealed(said, r'information: Type of ".*" is "(.*)"') == TYPES
