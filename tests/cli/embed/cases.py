"""Texts, and the vectors that they have."""

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_bert_impl import TextEncoder

LINES = ["nice to meet you", "", "the river rose over night, and you.", "a", "Nice to the river"]
WIDTH = 30


def expected(model: Any, texts: list[str] = LINES, **options: Any) -> Any:
    return TextEncoder.from_pretrained(model, device="cpu").encode(texts, **options)


def assert_complete(output: Path, vectors: np.ndarray) -> None:
    """The file holds these vectors and is alone in its folder."""
    found = np.load(output)
    assert found.dtype == np.float32
    assert found.shape == vectors.shape
    assert np.abs(found - vectors).max() < 1e-5
    assert {file.name for file in output.parent.iterdir()} == {output.name}


def give_input(monkeypatch: pytest.MonkeyPatch, texts: list[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(texts).encode())))
