"""Columns of a table, row by row: CSV, TSV, Parquet, and folders of the `datasets` library.

Nothing is read whole, and reading can begin at any row. Parquet and data sets need the extra
`train`; CSV and TSV need nothing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from hf_bert_impl.errors import InputError, InputNote, one_line
from hf_bert_impl.extras import require
from hf_bert_impl.files.text import decode, mended_lines

#: Rows that are read at once.
ROWS = 1000
READ_BYTES = 1 << 20
#: Most characters of a field of CSV: what is beyond is taken for a quote that nobody closed.
LONGEST_FIELD = 1 << 24

# A copy of the module behind `csv`, since its limit is shared by all readers of a process.
_spec: Any = importlib.util.find_spec("_csv")
_csv: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_csv)
_csv.field_size_limit(LONGEST_FIELD)

#: Where a record stands; its text, a list of texts where several columns are asked for, or the
#: error that says what is wrong with it; and its id (None where no column of ids is asked for).
#: A text or an id that is not UTF-8 is bytes.
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


def say(note: str) -> None:
    """Warns of what an input was taken for."""
    warnings.warn(note, InputNote, stacklevel=3)


def table_records(
    lines: Lines,
    name: str,
    tabs: bool,
    column: Wanted,
    id_column: str | None,
    say: Callable[[str], None] = say,
) -> Iterator[Record]:
    """Rows of CSV, or of TSV, which knows no quotes.

    Args:
        lines: Of the file, in UTF-8.
        name: The file, for messages.
        tabs: Whether fields have tabs between them.
        column: The texts: a name in the first line, or else a number from 0, with which the first
            line is a row as any other; an `InputNote` says so. None takes the only column.
        id_column: The ids, likewise.
        say: Gets that note.

    Raises:
        InputError: There is no such column, or what follows cannot be told apart.
    """
    names = [it for it in (*_several(column), id_column) if it is not None]
    places: list[int] = []
    width = 0
    for number, fields, problem in _fields(lines, name, tabs):
        if not width:
            width = len(fields)
            has_header = set(names) <= set(fields) or not all(it.isdecimal() for it in names)
            if has_header and problem is not None:
                raise problem
            if not names:
                _check_one_field(fields, name, tabs)
            known = fields if has_header else [str(place) for place in range(width)]
            places = [known.index(it) for it in choose_columns(name, known, column, id_column)]
            is_begun = lines.pass_over()
            note = _note_of_numbers(name, names, fields, has_header, places)
            if note and not is_begun:
                say(note)
            if is_begun or has_header:
                continue
        where = f"line {number} of {name}"
        if problem is not None:
            yield where, problem, None
            continue
        if len(fields) != width:
            given = f"{where} has {len(fields)} fields"
            yield where, InputError(given, f"{width} as in its first line", "mend the line"), None
            continue
        values = [fields[place] for place in places]
        yield where, *_record(values, column, id_column)


def _check_one_field(fields: list[str], name: str, tabs: bool) -> None:
    """Raises InputError if a first line of one field looks like several of another form."""
    if len(fields) == 1 and any(mark in fields[0] for mark in (";,|" if tabs else ";\t|")):
        raise InputError(
            f"the first line of {name} is one field, {fields[0][:60]!r}",
            f"fields with {'tabs' if tabs else 'commas'} between them",
            "write the file so, or name this column with `column`",
        )


def _note_of_numbers(
    name: str, names: list[str], fields: list[str], has_header: bool, places: list[int]
) -> str | None:
    """What the first line was taken for, where columns are given as numbers."""
    if not has_header:
        return (
            f"the first line of {name} is taken as a text ({fields[places[0]][:40]!r}), since "
            f"column {names[0]} is a number; name a column if this line is a header"
        )
    if names and all(it.isdecimal() and int(it) < len(fields) for it in names):
        return (
            f"the first line of {name} is taken as a header, since it has the name {names[0]!r}, "
            f"which is column number {places[0]}"
        )
    return None


def _several(column: Wanted) -> tuple[str | None, ...]:
    return column if isinstance(column, tuple) else (column,)


def _record(values: list[Any], column: Wanted, id_column: str | None) -> tuple[Any, Any]:
    """The texts and the id of a row's chosen columns."""
    identifier = None if id_column is None else values.pop()
    return values if isinstance(column, tuple) else values[0], identifier


def _fields(
    lines: Lines, name: str, tabs: bool
) -> Iterator[tuple[int, list[str], InputError | None]]:
    """Line number and fields of each row that is not empty, and what is wrong with its bytes."""
    problem: InputError | None = None

    def texts() -> Iterator[str]:
        nonlocal problem
        for line in lines:
            try:
                yield decode(line, name, lines.lines)
            except InputError as error:
                problem = error
                # No byte of a character, a comma or a quote is lost, so the fields are right.
                yield line.decode("utf-8", "surrogateescape")

    # Line ends stay: within quotes they belong to the text.
    rows: Iterable[list[str]] = _csv.reader(texts(), strict=True)
    if tabs:
        stripped = (text.removesuffix("\n").removesuffix("\r") for text in texts())
        rows = (text.split("\t") if text else [] for text in stripped)
    first = 1
    try:
        for fields in rows:
            if fields:
                yield first, fields, problem
            first, problem = lines.lines + 1, None
    except _csv.Error as error:
        raise InputError(
            f"line {first} of {name} is no CSV ({error})",
            "fields with commas between them, in double quotes where they hold any",
            "mend the line",
        ) from error


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
    if any(arrow.types.is_dictionary(schema.field(it).type) for it in chosen):
        file = _plain(file, stream)
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
                yield from _transposed([column_values(batch[it]) for it in chosen])

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
    part = table.with_format("arrow").select_columns(list(dict.fromkeys(chosen)))
    part = part.select(range(min(start, count), count))
    columns = ([column_values(b[it]) for it in chosen] for b in part.iter(ROWS))
    rows = itertools.chain.from_iterable(map(_transposed, columns))
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


def _plain(file: Any, stream: IO[bytes]) -> Any:
    """A Parquet file whose dictionaries are read as texts: one bad byte would spoil them whole."""
    import pyarrow
    from pyarrow import parquet

    is_dictionary = pyarrow.types.is_dictionary
    fields = [
        (it.name, it.type.value_type if is_dictionary(it.type) else it.type)
        for it in file.schema_arrow
    ]
    footer = io.BytesIO()
    try:
        parquet.write_metadata(pyarrow.schema(fields), footer, metadata_collector=[file.metadata])
    except (RuntimeError, pyarrow.ArrowException):  # other columns have kinds of another release
        return file
    footer.seek(0)
    metadata = parquet.read_metadata(footer)
    return parquet.ParquetFile(stream, metadata=metadata, buffer_size=READ_BYTES)


def column_values(column: Any) -> list[Any]:
    """A column of pyarrow as a list, in which bytes stand for a text that is not UTF-8."""
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
        "give names for a file with a header, or numbers from 0 for one without",
    )


def no_texts(name: str, column: str, kind: Any) -> InputError:
    """The error for a column of something else than texts."""
    return InputError(
        f"column {column!r} of {name} holds {kind}", "texts", "name another with `column`"
    )
