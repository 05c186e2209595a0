"""A file of texts of many lengths, and the job that embeds them."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hf_bert_impl import TextEncoder
from hf_bert_impl.distributed import EmbedTexts
from hf_bert_impl.distributed.job import Job
from tests.distributed.cases import IDS
from tests.support.checkpoints import TEXTS


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """JSON lines with ids."""
    file = tmp_path / "rows.jsonl"
    lines = [json.dumps({"text": text, "id": name}) for name, text in zip(IDS, TEXTS, strict=True)]
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.fixture
def job(models: Callable[..., str], rows: Path, tmp_path: Path) -> Job:
    """Their vectors, in six parts."""
    options = {"model": models("BertModel")}
    return Job(EmbedTexts, options, (str(rows),), tmp_path / "out", "text", "id", 9)


@pytest.fixture
def expected(models: Callable[..., str]) -> np.ndarray:
    """The vectors of the texts, by the encoder alone."""
    return TextEncoder.from_pretrained(models("BertModel"), batch_invariant=True).encode(TEXTS)
