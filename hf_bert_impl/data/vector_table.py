"""Vectors in their stored precision, and tables of them as Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_bert_impl.errors import InputError
from hf_bert_impl.extras import require

if TYPE_CHECKING:
    import numpy as np

#: Rows per row group, always the same so that the same vectors give the same bytes.
GROUP_ROWS = 4096
#: Columns of repeated values.
DICTIONARIES = ["file", "label"]
PURPOSE = "writing Parquet"
#: Stored types by precision. int8 has one scale per row, the largest magnitude / 127.
PRECISIONS = {"float32": "<f4", "float16": "<f2", "int8": "|i1"}


def as_stored(vectors: np.ndarray, precision: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Vectors in the precision that they are stored in.

    Args:
        vectors: (n, D) float32.
        precision: One of `PRECISIONS`.

    Returns:
        (n, D) in that precision, and for int8 the scales (n,) float32 to multiply with.

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
            f"a number of the vector is {largest[wrong[0], 0]:g}, which {precision} cannot hold. "
            "Use `precision='float32'`.",
            "precision='float32'",
        )
    if precision == "float16":
        return vectors.astype(kind), None
    scales = (largest / 127).astype("<f4")
    steps = np.rint(vectors / np.where(scales > 0, scales, 1)).clip(-127, 127)
    return steps.astype(kind), scales[:, 0]


def write_columns(file: Path, columns: dict[str, Any]) -> None:
    """Writes lists or arrays by name as a small Parquet table; see `arrow_table`."""
    parquet = require("pyarrow.parquet", "ray", PURPOSE)
    options = {"row_group_size": GROUP_ROWS, "use_dictionary": DICTIONARIES}
    with file.open("wb") as stream:  # pyarrow takes no name that is not UTF-8
        parquet.write_table(arrow_table(columns), stream, **options)


def arrow_table(columns: dict[str, Any]) -> Any:
    """A pyarrow table of lists, pyarrow columns or arrays by name.

    An array of two dimensions becomes lists of a fixed size.
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
            # An empty column has no value that tells arrow its type; it holds texts.
            has_kind = len(values) or getattr(values, "dtype", np.dtype(object)).kind != "O"
            arrays[name] = arrow.array(values, None if has_kind else arrow.string())
    return arrow.table(arrays)


def join_files(files: Sequence[Path], output: Path) -> None:
    """Writes the rows of several files into one, with one file at a time in memory.

    Args:
        files: With the same columns, all .npy or all Parquet.
        output: A .npy or .parquet accordingly.
    """
    if output.suffix == ".npy":
        import numpy as np

        first = np.load(files[0], mmap_mode="r")
        rows = sum(len(np.load(file, mmap_mode="r")) for file in files)
        header = np.lib.format.header_data_from_array_1_0(first) | {"shape": (rows, first.shape[1])}
        with output.open("wb") as stream:
            np.lib.format.write_array_header_1_0(stream, header)
            for file in files:
                stream.write(np.load(file).tobytes())
        return
    parquet = require("pyarrow.parquet", "train", PURPOSE)
    with files[0].open("rb") as part:
        schema = parquet.read_schema(part)
    with (
        output.open("wb") as stream,
        parquet.ParquetWriter(stream, schema, use_dictionary=DICTIONARIES) as writer,
    ):
        for file in files:
            with file.open("rb") as part:
                writer.write_table(parquet.ParquetFile(part).read(), row_group_size=GROUP_ROWS)
