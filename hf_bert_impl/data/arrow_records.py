"""Rows of Parquet files and `datasets` tables, one at a time, from any row on (extra `train`)."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from hf_bert_impl.data.table_records import Choice, Values
from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.extras import require

#: Rows per read.
ROWS = 1000
READ_BYTES = 1 << 20


def parquet_records(
    stream: IO[bytes], name: str, choice: Choice, start: int = 0
) -> Iterator[Values]:
    """The rows of a Parquet file from row `start` on.

    Raises:
        InputError: The file is not Parquet, or has no such column.
    """
    arrow = require("pyarrow", "train", "reading Parquet")
    parquet = require("pyarrow.parquet", "train", "reading Parquet")

    @contextlib.contextmanager
    def reading() -> Iterator[None]:
        try:
            yield
        except (arrow.ArrowException, OSError) as error:
            raise InputError(
                f"{name} cannot be read as Parquet ({one_line(error)[:200]}). Write or copy it "
                "again."
            ) from error

    with reading():
        # The buffer makes it read a row group page by page.
        file = parquet.ParquetFile(stream, buffer_size=READ_BYTES)
    chosen = choice.of(name, file.schema_arrow.names)
    groups, first = _groups(file.metadata, start)

    def batches() -> Iterator[Any]:
        with reading():
            yield from file.iter_batches(ROWS, row_groups=groups, columns=_present(chosen))

    return itertools.islice(_rows(batches(), chosen, name, first), start - first, None)


def dataset_records(folder: Path, name: str, choice: Choice, start: int = 0) -> Iterator[Values]:
    """The records of a folder that `datasets` wrote with `save_to_disk`, from row `start` on.

    Raises:
        InputError: The folder is another one, or has several splits or no such column.
    """
    if not is_dataset(folder):
        raise InputError(
            f"{name} is a folder, and not one that datasets wrote with save_to_disk. Name a file "
            "in it."
        )
    datasets = require("datasets", "train", "reading a folder of datasets")
    try:
        table = datasets.load_from_disk(str(folder))
    except Exception as error:  # a damaged folder may raise anything
        raise InputError(
            f"{name} cannot be read as a folder of datasets ({one_line(error)[:200]}). Write it "
            "again with save_to_disk."
        ) from error
    if isinstance(table, datasets.DatasetDict):
        if len(table) != 1:
            raise InputError(
                f"{name} holds the splits {', '.join(table)}. Name the folder of one, e.g. "
                f"{folder / next(iter(table), 'train')}."
            )
        (table,) = table.values()
    return records_of(table, name, choice, start)


def records_of(
    table: Any, name: str, choice: Choice, start: int = 0
) -> Iterator[tuple[str, list[Any]]]:
    """The records of a `datasets` table; class numbers become their names."""
    chosen = choice.of(name, table.column_names)
    part = table.with_format("arrow").select_columns(_present(chosen))
    part = part.select(range(min(start, len(table)), len(table)))
    classes = [
        None if column is None else _class_names(table.features[column]) for column in chosen
    ]
    for place, values in _rows(part.iter(ROWS), chosen, name, start):
        yield place, [_named(value, names) for value, names in zip(values, classes, strict=True)]


def is_dataset(folder: Path) -> bool:
    """Whether `datasets` wrote a folder."""
    return any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))


def seekable(stream: IO[bytes], is_compressed: bool) -> IO[bytes]:
    """A stream that Parquet's reader can seek: a compressed one is unpacked to a temporary file."""
    if not is_compressed:
        return stream
    unpacked: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 -- the caller closes it
    shutil.copyfileobj(stream, unpacked)
    unpacked.seek(0)
    return unpacked


def column_values(column: Any) -> list[Any]:
    """A pyarrow column as a list; a text that is not UTF-8 stays bytes."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        import pyarrow

        if pyarrow.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        return list(map(_decoded, column.cast(pyarrow.binary()).to_pylist()))


def _decoded(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value


def _present(chosen: Sequence[str | None]) -> list[str]:
    return [column for column in dict.fromkeys(chosen) if column is not None]


def _rows(
    batches: Iterable[Any], chosen: Sequence[str | None], file: str, start: int
) -> Iterator[tuple[str, list[Any]]]:
    """The rows of pyarrow batches; an absent column gives None."""

    def rows() -> Iterator[tuple[Any, ...]]:
        for batch in batches:
            absent = [None] * batch.num_rows
            columns = [absent if name is None else column_values(batch[name]) for name in chosen]
            yield from zip(*columns, strict=True)

    for number, values in enumerate(rows(), start + 1):
        yield f"row {number} of {file}", list(values)


def _groups(metadata: Any, start: int) -> tuple[list[int], int]:
    """The row groups of a Parquet file from that of row `start` on, and their first row."""
    first = 0
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        if first + rows > start:
            return list(range(group, metadata.num_row_groups)), first
        first += rows
    return [], start


def _class_names(feature: Any) -> list[str] | None:
    feature = getattr(feature, "feature", feature)  # of a list
    return getattr(feature, "names", None)


def _named(value: Any, classes: list[str] | None) -> Any:
    if classes is None:
        return value
    if isinstance(value, list):
        return [_named(item, classes) for item in value]
    # -1 marks a label that the data set does not publish.
    return classes[value] if value is not None and value >= 0 else None
