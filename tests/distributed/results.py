"""Read and check the output of a finished job."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet

from hf_bert_impl.distributed.digests import file_digest
from hf_bert_impl.distributed.parts import MANIFEST, REJECTS


def finished(output: Path) -> dict[Any, dict[str, Any]]:
    """The rows by id; each id once, every part as the manifest says."""
    manifest = json.loads((output / MANIFEST).read_text())
    rows: dict[Any, dict[str, Any]] = {}
    for entry in manifest["parts"]:
        file = output / f"{entry['part']}.parquet"
        assert file_digest(file) == entry["sha256"]
        assert file.stat().st_size == entry["bytes"]
        table = parquet.read_table(file).to_pylist()
        assert len(table) == entry["written"]
        for row in table:
            key = (row.pop("file"), row["id"]) if "file" in row else row["id"]
            assert key not in rows
            rows[key] = row
    assert len(list(output.glob("*.parquet"))) == len(manifest["parts"])
    assert len(rows) == manifest["rows"]
    assert not list(output.rglob(".partial-*"))
    return rows


def rejects(output: Path) -> list[dict[str, Any]]:
    """The rejected rows."""
    return [json.loads(line) for line in (output / REJECTS).read_text().splitlines()]


def vectors(rows: dict[Any, dict[str, Any]], ids: list[Any]) -> np.ndarray:
    """Their vectors in the order of the ids."""
    return np.array([rows[identifier]["vector"] for identifier in ids], np.float32)
