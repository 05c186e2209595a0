"""Vectors as Parquet: the columns `id` and `vector`, and `scale` beside int8."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_bert_impl.data.row_ids import RowIds
from hf_bert_impl.extras import require
from hf_bert_impl.files.atomic import sync

if TYPE_CHECKING:
    import numpy as np

#: Rows of a row group; files of the same vectors have the same bytes.
GROUP_ROWS = 4096
PURPOSE = "writing Parquet"


def write_parquet(
    output: Path,
    vectors: np.ndarray[Any, Any],
    scales: np.ndarray[Any, Any] | None,
    ids: RowIds | None,
    part_size: int | None,
) -> None:
    """Writes rows; the output appears when it is complete.

    Args:
        output: The file, or with `part_size` a folder of part-00000.parquet and so on.
        vectors: (N, D) float32, float16 or int8; may be a memory map, and is read in pieces.
        scales: (N,) float32, by which int8 is multiplied; None for the other types.
        ids: Of the rows; None numbers them from 0.
        part_size: Most rows a file; None writes one.
    """
    # A fixed name: what a killed run left there is removed, as the caller has locked the output.
    fresh = output.with_name(f".{output.name}.partial-table")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    try:
        count = len(vectors)
        for part, start in enumerate(range(0, count, part_size or count)):
            file = fresh / f"part-{part:05}.parquet"
            _write_part(file, vectors, scales, ids, start, min(start + (part_size or count), count))
            sync(file)
        if part_size is None:
            os.replace(fresh / "part-00000.parquet", output)
        else:
            os.rename(fresh, output)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _write_part(
    file: Path,
    vectors: np.ndarray[Any, Any],
    scales: np.ndarray[Any, Any] | None,
    ids: RowIds | None,
    start: int,
    stop: int,
) -> None:
    arrow = require("pyarrow", "train", PURPOSE)
    parquet = require("pyarrow.parquet", "train", PURPOSE)
    numbers = arrow.from_numpy_dtype(vectors.dtype)
    width = vectors.shape[1]
    is_text = ids is not None and ids.kind is str
    fields = [
        arrow.field("id", arrow.string() if is_text else arrow.int64(), nullable=False),
        arrow.field("vector", arrow.list_(numbers, width), nullable=False),
    ]
    if scales is not None:
        fields.append(arrow.field("scale", arrow.float32(), nullable=False))
    schema = arrow.schema(fields)
    with parquet.ParquetWriter(file, schema, use_dictionary=False) as writer:
        for first in range(start, stop, GROUP_ROWS):
            end = min(first + GROUP_ROWS, stop)
            flat = arrow.array(vectors[first:end].reshape(-1))
            columns = [
                arrow.array(
                    range(first, end) if ids is None else ids.between(first, end), fields[0].type
                ),
                arrow.FixedSizeListArray.from_arrays(flat, type=fields[1].type),
            ]
            if scales is not None:
                columns.append(arrow.array(scales[first:end]))
            writer.write_table(arrow.Table.from_arrays(columns, schema=schema))
