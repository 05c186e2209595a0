"""Read and check the output of a finished job."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet

from hf_bert_impl.distributed.job import MANIFEST, REJECTS


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
