"""What mypy and pyright know of programs that use the package as installed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

MODELS = """
from typing import Any, assert_type

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

import hf_bert_impl as b

assert_type(b.BertModel.from_pretrained("x"), b.BertModel)
assert_type(b.BertForPreTraining.from_pretrained("x"), b.BertForPreTraining)
assert_type(b.BertForTokenClassification.from_pretrained("x"), b.BertForTokenClassification)
info = b.BertForMaskedLM.from_pretrained("x", output_loading_info=True)
assert_type(info, tuple[b.BertForMaskedLM, dict[str, Any]])
assert_type(b.BertModel(b.BertConfig()), b.BertModel)
assert_type(b.BertModel.from_pretrained("x").config, b.BertConfig)
assert_type(b.BertConfig.from_pretrained("x"), b.BertConfig)
assert_type(b.BertTokenizer.from_pretrained("x"), b.BertTokenizer)
assert_type(b.load_any("x"), PreTrainedModel)
encoder = b.TextEncoder.from_pretrained("folder", truncate_dim=7, revision="main")
assert_type(encoder, b.TextEncoder)
assert_type(encoder.encode(["a"], convert_to_tensor=True), Tensor)
assert_type(encoder.encode("a", output_value="token_embeddings"), Tensor)
"""
TYPICAL = """
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
assert_type(encoder.to("cpu"), b.TextEncoder)
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


def wrong_lines(folder, program, said, *command):
    """The numbers of the lines of which a checker says this, from the last, which is 0."""
    if any("editable" in getattr(finder, "__name__", "").lower() for finder in sys.meta_path):
        # As `pip install -e .` made it before: type checkers do not run import hooks.
        pytest.skip("the package is installed by an import hook; run `pip install -e .` again")
    (folder / "program.py").write_text(program)
    # Nothing but the installation may say where the package is.
    environment = {k: v for k, v in os.environ.items() if k not in ("MYPYPATH", "PYTHONPATH")}
    command = [*command, "program.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    found = re.findall(rf"\bprogram\.py:(\d+):.*{said}", done.stdout)
    assert found, done.stdout + done.stderr
    return sorted(len(program.splitlines()) - int(line) for line in {*found})


@pytest.mark.timeout(900)
def test_mypy(tmp_path):
    (tmp_path / "mypy.ini").write_text(f"[mypy]\n{UNREAD}")
    command = (sys.executable, "-m", "mypy", "--cache-dir", os.devnull)
    program = "\n".join((MODELS + TYPICAL, *WRONG))
    assert wrong_lines(tmp_path, program, "error: ", *command) == [*range(len(WRONG))]


@pytest.mark.timeout(900)
def test_pyright(tmp_path):
    checker = shutil.which("basedpyright", path=str(Path(sys.executable).parent))
    if checker is None:
        pytest.skip("basedpyright is not installed: pip install -e '.[dev]'")
    program = MODELS + "assert_type(encoder, int)\n"
    command = (checker, "--pythonpath", sys.executable)
    assert wrong_lines(tmp_path, program, "reportAssertTypeFailure", *command) == [0]
