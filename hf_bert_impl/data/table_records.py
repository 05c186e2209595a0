"""One column of a table, row by row: CSV, TSV, Parquet, and folders of the `datasets` library.

Nothing is read whole. Parquet and data sets need the extra `train`; CSV and TSV need nothing.
"""

from __future__ import annotations

import csv
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.extras import require
from hf_bert_impl.files.text import decode, decode_lines

#: Rows that are read at once.
ROWS = 1000
READ_BYTES = 1 << 20
#: Most characters of a field of CSV: what is beyond is taken for a quote that nobody closed.
LONGEST_FIELD = 1 << 24

#: Where a record stands, its text, and its id (None where no column of ids is asked for).
Record = tuple[str, Any, Any]


def table_records(
    lines: Iterable[bytes], name: str, tabs: bool, column: str | None, id_column: str | None
) -> Iterator[Record]:
    """Rows of CSV, or of TSV, which knows no quotes.

    Args:
        lines: The lines of the file, in UTF-8, with their ends.
        name: The file, for messages.
        tabs: Whether fields have tabs between them.
        column: The texts: a name in the header, or a number from 0 where there is none; None takes
            the only column that there is.
        id_column: The ids, likewise.

    Raises:
        InputError: There is no such column, or a row cannot be read.
    """
    names = [it for it in (column, id_column) if it is not None]
    has_header = not names or not all(it.isdecimal() for it in names)
    text_place, id_place, width = -1, -1, 0
    for number, fields in table_fields(lines, name, tabs):
        if not width:
            width = len(fields)
            known = fields if has_header else [str(place) for place in range(width)]
            text_place = known.index(choose_column(name, known, column, id_column))
            id_place = -1 if id_column is None else known.index(id_column)
            if has_header:
                continue
        if len(fields) != width:
            raise InputError(
                f"line {number} of {name} has {len(fields)} fields",
                f"{width} as in its first line",
                "mend the line",
            )
        yield (
            f"line {number} of {name}",
            fields[text_place],
            None if id_column is None else fields[id_place],
        )


def table_fields(lines: Iterable[bytes], name: str, tabs: bool) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of each row of CSV or TSV that is not empty.

    Args:
        lines: As for `table_records`, and the other arguments.
        name: The file, for messages.
        tabs: Whether fields have tabs between them.

    Raises:
        InputError: A line cannot be read.
    """
    if not tabs:
        yield from _csv_fields(lines, name)
        return
    for number, text in decode_lines(lines, name):
        if text:
            yield number, text.split("\t")


def _csv_fields(lines: Iterable[bytes], name: str) -> Iterator[tuple[int, list[str]]]:
    # Line ends stay: within quotes they belong to the text.
    reader = csv.reader((decode(line, name, n) for n, line in enumerate(lines, 1)), strict=True)
    before = csv.field_size_limit(LONGEST_FIELD)
    try:
        first = 1
        for fields in reader:
            if fields:
                yield first, fields
            first = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"line {first} of {name} is no CSV ({error})",
            "fields with commas between them, in double quotes where they hold any",
            "mend the line",
        ) from error
    finally:
        csv.field_size_limit(before)


class ParquetRecords(Iterator[Record]):
    """Rows of a Parquet file; its arguments are those of `table_records`.

    Raises:
        InputError: The file is no Parquet, has no such column, or the column holds no texts.
    """

    def __init__(
        self, stream: IO[bytes], name: str, column: str | None, id_column: str | None
    ) -> None:
        arrow = require("pyarrow", "train", "reading Parquet")
        parquet = require("pyarrow.parquet", "train", "reading Parquet")
        self._name, self._errors = name, (arrow.ArrowException, OSError)
        try:
            # With a buffer, a row group is read page by page, not whole.
            file = parquet.ParquetFile(stream, buffer_size=READ_BYTES)
        except self._errors as error:
            raise self._damaged(error) from error
        self.rows: int = file.metadata.num_rows
        schema = file.schema_arrow
        column = choose_column(name, schema.names, column, id_column)
        kind = schema.field(column).type
        if arrow.types.is_dictionary(kind):
            kind = kind.value_type
        is_text = (arrow.types.is_string, arrow.types.is_large_string, arrow.types.is_string_view)
        if not any(is_kind(kind) for is_kind in is_text):
            raise no_texts(name, column, kind)
        self._columns = [it for it in (column, id_column) if it is not None]
        batches = file.iter_batches(batch_size=ROWS, columns=list(dict.fromkeys(self._columns)))
        self._records = self._read(batches)

    def _read(self, batches: Iterator[Any]) -> Iterator[Record]:
        try:
            pieces = ([b[name].to_pylist() for name in self._columns] for b in batches)
            yield from _zipped(pieces, self._name)
        except self._errors as error:
            raise self._damaged(error) from error

    def _damaged(self, error: BaseException) -> InputError:
        return InputError(
            f"{self._name} cannot be read as Parquet ({one_line(error)[:200]})",
            "a whole file in this form",
            "write or copy it again",
        )

    def __next__(self) -> Record:
        return next(self._records)


class DatasetRecords(Iterator[Record]):
    """Rows of a folder that `datasets` wrote with `save_to_disk`; arguments as `table_records`.

    Raises:
        InputError: It is no such folder, has several splits or no such column, or the column holds
            no texts.
    """

    def __init__(self, folder: Path, name: str, column: str | None, id_column: str | None) -> None:
        if not is_dataset(folder):
            raise InputError(
                f"{name} is a folder, and not one that datasets wrote with save_to_disk",
                "a file of texts, such a folder, or -",
                "name a file in it",
            )
        datasets = require("datasets", "train", "reading a folder of datasets")
        try:
            table = datasets.load_from_disk(str(folder))
        # A damaged folder may raise anything.
        except Exception as error:
            raise InputError(
                f"{name} cannot be read as a folder of datasets ({one_line(error)[:200]})",
                "what save_to_disk wrote",
                "write or copy it again",
            ) from error
        if isinstance(table, datasets.DatasetDict):
            if len(table) != 1:
                raise InputError(
                    f"{name} holds the splits {', '.join(table)}",
                    "one of them",
                    f"name its folder, such as {folder / next(iter(table), 'train')}",
                )
            (table,) = table.values()
        self.rows = len(table)
        column = choose_column(name, table.column_names, column, id_column)
        feature = table.features[column]
        if getattr(feature, "dtype", None) not in ("string", "large_string"):
            raise no_texts(name, column, getattr(feature, "dtype", type(feature).__name__))
        columns = [it for it in (column, id_column) if it is not None]
        chosen = table.with_format(None).select_columns(list(dict.fromkeys(columns)))
        pieces = ([batch[it] for it in columns] for batch in chosen.iter(ROWS))
        self._records = _zipped(pieces, name)

    def __next__(self) -> Record:
        return next(self._records)


def is_dataset(folder: Path) -> bool:
    """Whether a folder is one that `datasets` wrote."""
    return any((folder / it).is_file() for it in ("state.json", "dataset_dict.json"))


def _zipped(pieces: Iterable[list[list[Any]]], name: str) -> Iterator[Record]:
    number = 0
    for texts, *ids in pieces:
        for text, identifier in zip(texts, ids[0] if ids else [None] * len(texts), strict=True):
            number += 1
            yield f"row {number} of {name}", text, identifier


def seekable(stream: IO[bytes], is_compressed: bool) -> IO[bytes]:
    """A stream in which Parquet's reader can jump: a compressed one goes to a temporary file."""
    if not is_compressed:
        return stream
    unpacked: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 -- the caller closes it
    shutil.copyfileobj(stream, unpacked)
    unpacked.seek(0)
    return unpacked


def choose_column(
    name: str, known: Sequence[str], column: str | None, id_column: str | None
) -> str:
    """The column of the texts.

    Args:
        name: The file, for messages.
        known: All columns.
        column: The one that is asked for; None for the only one beside `id_column`.
        id_column: That of the ids, or None.

    Raises:
        InputError: There is no such column, or none is asked for and there are several.
    """
    shown = ", ".join(map(repr, known)) or "none"
    for option, wanted in (("column", column), ("id_column", id_column)):
        if wanted is not None and list(known).count(wanted) != 1:
            what = "several columns" if wanted in known else "no column"
            raise InputError(
                f"{name} has {what} {wanted!r} for `{option}`", f"one of {shown}", "name another"
            )
    if column is not None:
        return column
    others = [it for it in known if it != id_column]
    if len(others) != 1:
        raise InputError(
            f"{name} has {len(others)} columns ({shown})",
            "to know which of them holds the texts",
            "name it with `column`",
        )
    return others[0]


def no_texts(name: str, column: str, kind: Any) -> InputError:
    """The error for a column of something else than texts."""
    return InputError(
        f"column {column!r} of {name} holds {kind}", "texts", "name another with `column`"
    )
