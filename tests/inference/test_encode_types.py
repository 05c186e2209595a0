"""What a type checker knows about the results of `encode`."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TYPICAL = """
from typing import Any, assert_type

import numpy as np
from torch import Tensor

from hf_bert_impl import TextEncoder

encoder = TextEncoder.from_pretrained("folder", truncate_dim=7, revision="main")
assert_type(encoder, TextEncoder)
texts = ["a", "b"]
assert_type(encoder.encode(texts), np.ndarray)
assert_type(encoder.encode("a"), np.ndarray)
assert_type(encoder.encode(np.array(texts), "query", None, 32), np.ndarray)
assert_type(encoder.encode_query(texts, normalize_embeddings=True), np.ndarray)
assert_type(encoder.encode(texts, precision="int8"), np.ndarray)
assert_type(encoder.encode(texts, "query", convert_to_tensor=True), Tensor)
assert_type(encoder.encode_document("a", convert_to_tensor=True, device="cpu"), Tensor)
assert_type(encoder.encode(texts, convert_to_numpy=False), list[Tensor])
assert_type(encoder.encode("a", convert_to_numpy=False), Tensor)
assert_type(encoder.encode(texts, output_value="token_embeddings"), list[Tensor])
assert_type(encoder.encode("a", output_value="token_embeddings"), Tensor)
assert_type(encoder.encode(texts, output_value=None), list[dict[str, Tensor]])
assert_type(encoder.encode("a", output_value=None), dict[str, Tensor])
as_tensor: bool = bool(texts)
assert_type(encoder.encode(texts, convert_to_tensor=as_tensor), Any)

async def awaited() -> None:
    assert_type(await encoder.encode_async(texts, "query", truncate_dim=7), np.ndarray)
    assert_type(await encoder.encode_async("a", convert_to_tensor=True), Tensor)
    assert_type(await encoder.encode_async(texts, convert_to_numpy=False), list[Tensor])
    assert_type(await encoder.encode_async("a", convert_to_numpy=False), Tensor)

vectors = encoder.encode(texts)
assert_type(encoder.similarity(vectors, encoder.encode(texts, convert_to_tensor=True)), Tensor)
assert_type(encoder.similarity_pairwise(list(vectors), [[1.0, 2.0]]), Tensor)
assert_type(encoder.max_seq_length, int)
encoder.max_seq_length = encoder.max_length = 7
assert_type(encoder.similarity_fn_name, str)
assert_type(encoder.to("cpu"), TextEncoder)
"""
WRONG = (
    "encoder.encode(5)",
    "encoder.encode(texts, 'query', 32)",
    "encoder.encode(texts, normalise=True)",
    "encoder.encode(texts, convert_to_tensor=True).argpartition(3)",
)


def test_types_of_typical_calls(tmp_path):
    pytest.importorskip("mypy")
    file = tmp_path / "typical.py"
    wrong = "\n".join(f"{line}  # line" for line in WRONG)
    file.write_text(TYPICAL + wrong + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", file]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    errors = [line for line in found.stdout.splitlines() if ": error: " in line]
    first = len(TYPICAL.splitlines()) + 1
    lines = {int(line.split(":")[1]) for line in errors}
    assert lines == set(range(first, first + len(WRONG))), found.stdout + found.stderr
