"""Columns of a table, row by row: CSV, TSV, Parquet, and folders of the `datasets` library.

Nothing is read whole, and reading can begin at any row. Parquet and data sets need the extra
`train`; CSV and TSV need nothing.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.extras import require
from hf_bert_impl.files.text import decode, mended_lines

#: Rows that are read at once.
ROWS = 1000
READ_BYTES = 1 << 20
#: Most characters of a field of CSV: what is beyond is taken for a quote that nobody closed.
LONGEST_FIELD = 1 << 24

#: Where a record stands; its text, a list of texts where several columns are asked for, or the
#: error that says what is wrong with it; and its id (None where no column of ids is asked for).
Record = tuple[str, Any, Any]
#: The columns of the texts that are asked for: one, the only one that there is, or several.
Wanted = str | None | tuple[str, ...]


class Lines(Iterator[bytes]):
    """The lines of a stream with their ends, and how much of it they are.

    Args:
        stream: Binary.
        jump: Lines and bytes that `pass_over` passes over; the stream can be sought where these
            are more than none.
        mended: The name of the stream, where a few bytes that are not UTF-8 are to be passed over.
    """

    def __init__(
        self, stream: IO[bytes], jump: tuple[int, int] = (0, 0), mended: str | None = None
    ) -> None:
        self._stream, self._jump = stream, jump
        self._lines: Iterator[bytes] = iter(stream.readline, b"")
        if mended is not None:
            self._lines = mended_lines(self._lines, mended)
        #: So far.
        self.lines = self.bytes = 0

    def pass_over(self) -> bool:
        """Goes on where the jump ends, and tells whether there is one."""
        if self._jump[1]:
            self.lines, self.bytes = self._jump
            self._stream.seek(self.bytes)
        return self._jump[1] > 0

    def __next__(self) -> bytes:
        line = next(self._lines)
        self.lines += 1
        self.bytes += len(line)
        return line


def table_records(
    lines: Lines, name: str, tabs: bool, column: Wanted, id_column: str | None
) -> Iterator[Record]:
    """Rows of CSV, or of TSV, which knows no quotes.

    Args:
        lines: Of the file, in UTF-8.
        name: The file, for messages.
        tabs: Whether fields have tabs between them.
        column: The texts: a name in the header, or a number from 0 where there is none; None takes
            the only column that there is.
        id_column: The ids, likewise.

    Raises:
        InputError: There is no such column, or what follows cannot be told apart.
    """
    names = [it for it in (*_several(column), id_column) if it is not None]
    has_header = not names or not all(it.isdecimal() for it in names)
    places: list[int] = []
    width = 0
    for number, fields in _fields(lines, name, tabs):
        if not width:
            width = len(fields)
            known = fields if has_header else [str(place) for place in range(width)]
            places = [known.index(it) for it in choose_columns(name, known, column, id_column)]
            if lines.pass_over() or has_header:
                continue
        where = f"line {number} of {name}"
        if len(fields) != width:
            given = f"{where} has {len(fields)} fields"
            yield where, InputError(given, f"{width} as in its first line", "mend the line"), None
            continue
        values = [fields[place] for place in places]
        yield where, *_record(values, column, id_column)


def _several(column: Wanted) -> tuple[str | None, ...]:
    return column if isinstance(column, tuple) else (column,)


def _record(values: list[Any], column: Wanted, id_column: str | None) -> tuple[Any, Any]:
    """The texts and the id of a row's chosen columns."""
    identifier = None if id_column is None else values.pop()
    return values if isinstance(column, tuple) else values[0], identifier


def _fields(lines: Lines, name: str, tabs: bool) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of each row that is not empty."""
    if not tabs:
        yield from _csv_fields(lines, name)
        return
    for line in lines:
        text = decode(line, name, lines.lines).removesuffix("\n").removesuffix("\r")
        if text:
            yield lines.lines, text.split("\t")


def _csv_fields(lines: Lines, name: str) -> Iterator[tuple[int, list[str]]]:
    # Line ends stay: within quotes they belong to the text.
    reader = csv.reader((decode(line, name, lines.lines) for line in lines), strict=True)
    before = csv.field_size_limit(LONGEST_FIELD)
    try:
        first = 1
        for fields in reader:
            if fields:
                yield first, fields
            first = lines.lines + 1
    except csv.Error as error:
        raise InputError(
            f"line {first} of {name} is no CSV ({error})",
            "fields with commas between them, in double quotes where they hold any",
            "mend the line",
        ) from error
    finally:
        csv.field_size_limit(before)


def parquet_records(
    stream: IO[bytes], name: str, column: Wanted, id_column: str | None, start: int = 0
) -> tuple[int, Iterator[Record]]:
    """The number of rows of a Parquet file, and those from row `start` on.

    The other arguments are those of `table_records`.

    Raises:
        InputError: The file is no Parquet, has no such column, or the column holds no texts.
    """
    arrow = require("pyarrow", "train", "reading Parquet")
    parquet = require("pyarrow.parquet", "train", "reading Parquet")

    @contextlib.contextmanager
    def reading() -> Iterator[None]:
        try:
            yield
        except (arrow.ArrowException, OSError) as error:
            raise InputError(
                f"{name} cannot be read as Parquet ({one_line(error)[:200]})",
                "a whole file in this form",
                "write or copy it again",
            ) from error

    with reading():
        # With a buffer, a row group is read page by page, not whole.
        file = parquet.ParquetFile(stream, buffer_size=READ_BYTES)
    schema = file.schema_arrow
    chosen = choose_columns(name, schema.names, column, id_column)
    is_text = (arrow.types.is_string, arrow.types.is_large_string, arrow.types.is_string_view)
    for text in chosen[: len(_several(column))]:
        kind = schema.field(text).type
        if arrow.types.is_dictionary(kind):
            kind = kind.value_type
        if not any(is_kind(kind) for is_kind in is_text):
            raise no_texts(name, text, kind)
    groups, first = _groups(file.metadata, start)
    columns = list(dict.fromkeys(chosen))

    def rows() -> Iterator[list[Any]]:
        with reading():
            for batch in file.iter_batches(batch_size=ROWS, row_groups=groups, columns=columns):
                yield from _transposed([batch[it].to_pylist() for it in chosen])

    wanted = itertools.islice(rows(), start - first, None)
    return file.metadata.num_rows, _numbered(wanted, name, start, column, id_column)


def dataset_records(
    folder: Path, name: str, column: Wanted, id_column: str | None, start: int = 0
) -> tuple[int, Iterator[Record]]:
    """The number of rows of a folder that `datasets` wrote with `save_to_disk`, and its records.

    The arguments are those of `parquet_records`.

    Raises:
        InputError: It is no such folder, has several splits or no such column, or the column holds
            no texts.
    """
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
    chosen = choose_columns(name, table.column_names, column, id_column)
    for text in chosen[: len(_several(column))]:
        feature = table.features[text]
        if getattr(feature, "dtype", None) not in ("string", "large_string"):
            raise no_texts(name, text, getattr(feature, "dtype", type(feature).__name__))
    count = len(table)
    part = table.with_format(None).select_columns(list(dict.fromkeys(chosen)))
    part = part.select(range(min(start, count), count))
    rows = (row for b in part.iter(ROWS) for row in _transposed([b[it] for it in chosen]))
    return count, _numbered(rows, name, start, column, id_column)


def is_dataset(folder: Path) -> bool:
    """Whether a folder is one that `datasets` wrote."""
    return any((folder / it).is_file() for it in ("state.json", "dataset_dict.json"))


def _groups(metadata: Any, start: int) -> tuple[list[int], int]:
    """The row groups of a Parquet file from that of row `start` on, and the first row in them."""
    first = 0
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        if first + rows > start:
            return list(range(group, metadata.num_row_groups)), first
        first += rows
    return [], start


def _transposed(columns: list[list[Any]]) -> Iterator[list[Any]]:
    return map(list, zip(*columns, strict=True))


def _numbered(
    rows: Iterable[list[Any]], name: str, start: int, column: Wanted, id_column: str | None
) -> Iterator[Record]:
    for number, values in enumerate(rows, start + 1):
        yield f"row {number} of {name}", *_record(values, column, id_column)


def seekable(stream: IO[bytes], is_compressed: bool) -> IO[bytes]:
    """A stream in which Parquet's reader can jump: a compressed one goes to a temporary file."""
    if not is_compressed:
        return stream
    unpacked: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 -- the caller closes it
    shutil.copyfileobj(stream, unpacked)
    unpacked.seek(0)
    return unpacked


def choose_columns(
    name: str, known: Sequence[str], column: Wanted, id_column: str | None
) -> list[str]:
    """The columns of the texts, and after them that of the ids where one is asked for.

    Args:
        name: The file, for messages.
        known: All columns.
        column: Those that are asked for; None for the only one beside `id_column`.
        id_column: That of the ids, or None.

    Raises:
        InputError: There is no such column, or none is asked for and there are several.
    """
    for wanted in (*_several(column), id_column):
        if wanted is not None and list(known).count(wanted) != 1:
            raise no_column(name, wanted, known)
    if column is None:
        others = [it for it in known if it != id_column]
        if len(others) != 1:
            shown = ", ".join(map(repr, known)) or "none"
            raise InputError(
                f"{name} has {len(others)} columns ({shown})",
                "to know which of them holds the texts",
                "name it with `column`",
            )
        column = others[0]
    return [it for it in (*_several(column), id_column) if it is not None]


def no_column(where: str, column: str, known: Sequence[str]) -> InputError:
    """The error for a column that is not there, or several times."""
    names = ", ".join(map(repr, known)) or "none"
    return InputError(
        f"{where} has {'several columns' if column in known else 'no column'} {column!r}",
        f"one of {names}",
        "name one of these, or give numbers from 0 where a file has no header",
    )


def no_texts(name: str, column: str, kind: Any) -> InputError:
    """The error for a column of something else than texts."""
    return InputError(
        f"column {column!r} of {name} holds {kind}", "texts", "name another with `column`"
    )
