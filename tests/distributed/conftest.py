"""Small models by head, and a file of texts of many lengths."""

import functools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hf_bert_impl import TextEncoder
from hf_bert_impl.distributed import EmbedTexts
from hf_bert_impl.distributed.job import Job
from tests.support.checkpoints import save_checkpoint

#: Unlike each other in length, and more than one part.
TEXTS = [f"the cat {'sat on the mat ' * (n % 7)}number {n}" for n in range(53)]
IDS = [f"t{n}" for n in range(len(TEXTS))]
RUN = "import sys; from hf_bert_impl.cli import main; sys.exit(main())"


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Folders by class and number of labels, each made once."""

    @functools.cache
    def folder(head: str, labels: int = 3) -> str:
        place = tmp_path_factory.mktemp("models") / head
        sizes = {"num_labels": labels} if head != "BertModel" else {}
        return str(save_checkpoint(place, head, initializer_range=0.4, **sizes))

    return folder


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
