"""Vectors as they are stored, and tables of them as Parquet."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_bert_impl.data.row_ids import RowIds
from hf_bert_impl.errors import InputError
from hf_bert_impl.extras import require
from hf_bert_impl.files.atomic import sync

if TYPE_CHECKING:
    import numpy as np

#: Rows of a row group; files of the same vectors have the same bytes.
GROUP_ROWS = 4096
PURPOSE = "writing Parquet"
#: What numbers are stored as. int8 has a scale for each row, the largest magnitude / 127.
PRECISIONS = {"float32": "<f4", "float16": "<f2", "int8": "|i1"}


def as_stored(
    vectors: np.ndarray[Any, Any], precision: str, first_row: int = 0
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]:
    """Vectors in the precision that they are stored in.

    Args:
        vectors: (n, D) float32.
        precision: One of `PRECISIONS`.
        first_row: The number of the first one, for the message.

    Returns:
        (n, D) in that precision, and for int8 the scales (n,) float32 by which it is multiplied.

    Raises:
        InputError: A number is too large for the precision.
    """
    import numpy as np

    kind = PRECISIONS[precision]
    if precision == "float32" or not len(vectors):
        empty = np.empty(0, "<f4") if precision == "int8" else None
        return vectors.astype(kind, copy=False), empty
    largest = np.abs(vectors).max(axis=1, keepdims=True)  # (n, 1)
    limit = float(np.finfo(np.float16).max) if precision == "float16" else np.inf
    wrong = np.flatnonzero(~(largest <= limit) | ~np.isfinite(largest))
    if len(wrong):
        raise InputError(
            f"the vector of text {first_row + int(wrong[0]) + 1} has {largest[wrong[0], 0]:g}",
            f"numbers that {precision} can hold",
            "use `precision='float32'`",
        )
    if precision == "float16":
        return vectors.astype(kind), None
    scales = (largest / 127).astype("<f4")
    steps = np.rint(vectors / np.where(scales > 0, scales, 1)).clip(-127, 127)
    return steps.astype(kind), scales[:, 0]


def write_columns(file: Path, columns: dict[str, Any]) -> None:
    """Writes a small table as Parquet.

    Args:
        file: The file.
        columns: By name: lists or arrays; one of two dimensions becomes lists of a fixed size.
    """
    parquet = require("pyarrow.parquet", "ray", PURPOSE)
    options = {"row_group_size": GROUP_ROWS, "use_dictionary": ["file", "label"]}
    with file.open("wb") as stream:  # pyarrow takes no name that is not UTF-8
        parquet.write_table(arrow_table(columns), stream, **options)


def arrow_table(columns: dict[str, Any]) -> Any:
    """A table of pyarrow.

    Args:
        columns: By name: lists, columns of pyarrow or arrays; an array of two dimensions becomes
            lists of a fixed size.
    """
    import numpy as np

    arrow = require("pyarrow", "ray", PURPOSE)
    arrays = {}
    for name, values in columns.items():
        if isinstance(values, np.ndarray) and values.ndim == 2:
            kind = arrow.list_(arrow.from_numpy_dtype(values.dtype), values.shape[1])
            flat = arrow.array(np.ascontiguousarray(values).reshape(-1))
            arrays[name] = arrow.FixedSizeListArray.from_arrays(flat, type=kind)
        elif hasattr(values, "to_pylist"):
            arrays[name] = values
        else:
            # Without a value arrow would not know that the others of the column are texts.
            has_kind = len(values) or getattr(values, "dtype", np.dtype(object)).kind != "O"
            arrays[name] = arrow.array(values, None if has_kind else arrow.string())
    return arrow.table(arrays)


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
    with (
        file.open("wb") as stream,
        parquet.ParquetWriter(stream, schema, use_dictionary=False) as writer,
    ):
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
