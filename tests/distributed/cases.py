"""A task that can be killed at work, or fails, and checks of a finished job's output."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet

from hf_bert_impl.distributed import EmbedTexts
from hf_bert_impl.distributed.job import MANIFEST, REJECTS
from tests.support.checkpoints import TEXTS

IDS = [f"t{n}" for n in range(len(TEXTS))]


class Hard(EmbedTexts):
    """`EmbedTexts` at the pace of a large model.

    Args:
        model: As of `EmbedTexts`.
        column: As of `EmbedTexts`.
        seconds: The time of a batch, besides its own.
        pids: A folder in which each process leaves its number.
        failing: Words of texts that cannot be computed, nor any batch that holds one.
        deadly: A text that ends the process.
    """

    def __init__(
        self,
        model: str,
        column: str = "text",
        *,
        seconds: float = 0.0,
        pids: str = "",
        failing: tuple[str, ...] = (),
        deadly: str = "",
    ) -> None:
        super().__init__(model, column)
        self.seconds, self.failing, self.deadly = seconds, failing, deadly
        if pids:
            Path(pids, str(os.getpid())).touch()

    def compute(self, *texts: list[str]) -> tuple[Any, ...]:
        time.sleep(self.seconds)
        if self.deadly in texts[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        if any(word in text.split() for word in self.failing for text in texts[0]):
            raise RuntimeError("the model\nfailed \ud83d")
        return super().compute(*texts)


def finished(output: Path) -> dict[Any, dict[str, Any]]:
    """The rows by id; each id once, in the files that the manifest lists."""
    manifest = json.loads((output / MANIFEST).read_text())
    rows: dict[Any, dict[str, Any]] = {}
    for name in manifest["parts"]:
        for row in parquet.read_table(output / name).to_pylist():
            assert row["id"] not in rows
            rows[row["id"]] = row
    assert len(list(output.rglob("*.parquet"))) == len(manifest["parts"])
    assert len(rows) == manifest["rows"]
    assert len(rejects(output)) == manifest["rejected"]
    assert not list(output.rglob(".partial-*"))
    return rows


def rejects(output: Path) -> list[dict[str, Any]]:
    """The rejected rows."""
    return [json.loads(line) for line in (output / REJECTS).read_text().splitlines()]


def assert_vectors(output: Path, expected: np.ndarray, *missing: int) -> None:
    """The rows are those of all texts, but for some places, with their vectors."""
    rows, good = finished(output), [n for n in range(len(expected)) if n not in missing]
    found = [rows.pop(f"t{n}")["vector"] for n in good]
    assert not rows and np.array_equal(np.array(found, np.float32), expected[good])
