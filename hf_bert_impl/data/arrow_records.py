"""Rows of Parquet files and `datasets` tables, one at a time (extra `train`)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hf_bert_impl.data.table_records import Choice
from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.extras import require

#: Rows per read.
ROWS = 1000
READ_BYTES = 1 << 20

Records = Iterator[tuple[str, list[Any]]]


def parquet_records(path: Path, name: str, choice: Choice) -> Records:
    """The rows of a Parquet file.

    Raises:
        InputError: The file is not Parquet, or has no such column.
    """
    arrow = require("pyarrow", "train", "reading Parquet")
    parquet = require("pyarrow.parquet", "train", "reading Parquet")
    try:
        # Opened here, since pyarrow takes no name that is not UTF-8. The buffer makes it read a
        # row group page by page.
        with path.open("rb") as stream:
            file = parquet.ParquetFile(stream, buffer_size=READ_BYTES)
            chosen = choice.of(name, file.schema_arrow.names)
            yield from _rows(file.iter_batches(ROWS, columns=_present(chosen)), chosen, name)
    except (arrow.ArrowException, OSError) as error:
        raise InputError(
            f"{name} cannot be read as Parquet ({one_line(error)[:200]}). Write or copy it again."
        ) from error


def dataset_records(folder: Path, name: str, choice: Choice) -> Records:
    """The records of a folder that `datasets` wrote with `save_to_disk`.

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
    return records_of(table, name, choice)


def records_of(table: Any, name: str, choice: Choice) -> Records:
    """The records of a `datasets` table; class numbers become their names."""
    chosen = choice.of(name, table.column_names)
    classes = [
        None if column is None else _class_names(table.features[column]) for column in chosen
    ]
    part = table.with_format("arrow").select_columns(_present(chosen))
    for place, values in _rows(part.iter(ROWS), chosen, name):
        yield place, [_named(value, names) for value, names in zip(values, classes, strict=True)]


def is_dataset(folder: Path) -> bool:
    """Whether `datasets` wrote a folder."""
    return any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))


def column_values(column: Any) -> list[Any]:
    """A pyarrow column as a list; bytes of a text that are not UTF-8 are surrogates."""
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        import pyarrow

        if pyarrow.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        values = column.cast(pyarrow.binary()).to_pylist()
        decode = "utf-8", "surrogateescape"
        return [None if value is None else value.decode(*decode) for value in values]


def _present(chosen: Sequence[str | None]) -> list[str]:
    return [column for column in dict.fromkeys(chosen) if column is not None]


def _rows(batches: Iterable[Any], chosen: Sequence[str | None], file: str) -> Records:
    """The rows of pyarrow batches; an absent column gives None."""
    numbers = itertools.count(1)
    for batch in batches:
        absent = [None] * batch.num_rows
        columns = [absent if name is None else column_values(batch[name]) for name in chosen]
        for values in zip(*columns, strict=True):
            yield f"row {next(numbers)} of {file}", list(values)


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
