"""Rows and texts of a file, a `datasets` folder or standard input, one at a time."""

from __future__ import annotations

import bz2
import contextlib
import dataclasses
import gzip
import io
import itertools
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from hf_bert_impl.data.arrow_records import dataset_records, parquet_records, seekable
from hf_bert_impl.data.table_records import (
    Choice,
    Lines,
    Values,
    conll_records,
    no_column,
    say,
    table_records,
)
from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.extras import require
from hf_bert_impl.files.json_files import check_text, parse_json
from hf_bert_impl.files.text import check_text_file, decode

#: How a file is read, by its ending in any case. All others are plain lines.
FORMS = {
    ".txt": "lines",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".csv": "csv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".parquet": "parquet",
    ".conll": "conll",
    ".bio": "conll",
    ".iob": "conll",
    ".iob2": "conll",
}
#: Further endings of compressed files, and how each stream is opened.
PACKED: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": lambda raw: require("pyarrow", "train", "reading .zst").CompressedInputStream(
        raw, "zstd"
    ),
}
#: Endings of binary files.
_BINARY = (
    *(".xlsx", ".xls", ".ods", ".docx", ".doc", ".odt", ".pdf", ".zip", ".tar", ".tgz", ".7z"),
    *(".arrow", ".feather", ".orc", ".npy", ".npz", ".pt", ".bin", ".safetensors", ".pkl", ".db"),
)

_BEGINS_JSON = re.compile(rb'\{\s*["}]|\[\s*(\{|$)')

#: Place, value and id of a record. The value is a text, a list for several columns, or the record's
#: error. Without an id column, the id is None.
Record = tuple[str, Any, Any]
#: The columns to read: one, several, or None for the only column.
Wanted = str | None | tuple[str, ...]


def endings(path: Path) -> tuple[str, str]:
    """The lower-case ending of a file's name, as in ".csv", and its compression, as in ".gz"."""
    packing = path.suffix.lower() if path.suffix.lower() in PACKED else ""
    return (path.with_suffix("") if packing else path).suffix.lower(), packing


def form_of(file: str | Path) -> str:
    """How a file or folder is read: one of `FORMS`' values, or "folder".

    Raises:
        InputError: Its ending is that of a binary file.
    """
    path = Path(file).expanduser()
    if path.is_dir():
        return "folder"
    ending, _ = endings(path)
    if ending in _BINARY:
        raise InputError(
            f"{file} ends in {ending}. Supported: {', '.join(FORMS)}, also followed by "
            f"{', '.join(PACKED)}. Save it as .csv."
        )
    return FORMS.get(ending, "lines")


@dataclasses.dataclass(frozen=True)
class Start:
    """Where reading begins: rows, lines and bytes before it, header included.

    `bytes` is 0 where the file has no lines, or is compressed and cannot be sought.
    """

    rows: int = 0
    lines: int = 0
    bytes: int = 0


class RecordInput(contextlib.AbstractContextManager["RecordInput"]):
    """The records of a file, a `datasets` folder or standard input, one at a time.

    The ending says how a file is read (`FORMS`); .gz, .bz2, .xz or .zst may follow. JSON is one
    object per line, or one list of objects. A folder is one that `datasets` wrote.

    Only a line feed ends a line. A line of plain text is a text even if it is empty, so row n is
    line n. With a column, plain text and standard input have fields: JSON if the first line begins
    an object or a list of objects, otherwise TSV. Empty lines of JSON, CSV and TSV are skipped.

    Args:
        file: A path, or `-` for standard input.
        column: One or several columns or JSON fields. None reads the only column, or `text` in
            JSON. In CSV, TSV and CoNLL, numbers from 0 work too.
        id_column: The column of ids, which are texts or whole numbers.
        start: The `position` of an earlier reading.
        mend: Replace a few bytes of CSV and TSV that are not UTF-8 (`mended_lines`).
        optional: An absent column gives None.
        say: Called with a note where the first line of a table is ambiguous.

    Raises:
        ValueError: The file is missing or has another form.
    """

    def __init__(
        self,
        file: str,
        column: Wanted = None,
        id_column: str | None = None,
        start: Start | None = None,
        *,
        mend: bool = False,
        optional: bool = False,
        say: Callable[[str], None] = say,
    ) -> None:
        self.name = "standard input" if file == "-" else file
        self._start, self._mend, self._say = start or Start(), mend, say
        self._rows, self._lines = self._start.rows, Lines(io.BytesIO())
        self._is_single, self._has_ids = not isinstance(column, tuple), id_column is not None
        self._opened = contextlib.ExitStack()
        columns = (column,) if isinstance(column, str) else column
        try:
            rows = self._open(file, Choice(columns, id_column, optional))
            #: Includes records that hold their error.
            self.records: Iterator[Record] = map(self._record, rows)
        except BaseException:
            self._opened.close()
            raise

    def __exit__(self, *error: Any) -> None:
        self._opened.close()

    @property
    def position(self) -> Start:
        """The start of the next record."""
        if self._can_seek:
            return Start(self._rows, self._lines.lines, self._lines.bytes)
        return Start(self._rows)

    def sound(self) -> Iterator[Record]:
        """The records; raises the error of the first bad one."""
        for record in self.records:
            if isinstance(record[1], ValueError):
                raise record[1]
            yield record

    def _record(self, row: Values) -> Record:
        self._rows += 1
        place, values = row
        if isinstance(values, ValueError):
            return place, values, None
        identifier = values.pop() if self._has_ids else None
        return place, values[0] if self._is_single else values, identifier

    def _open(self, file: str, choice: Choice) -> Iterator[Values]:
        path, start = Path(file).expanduser(), self._start
        self.form = form_of(path) if file != "-" else "lines"
        self._can_seek = False
        if self.form == "folder":
            return dataset_records(path, self.name, choice, start.rows)
        packing = endings(path)[1] if file != "-" else ""
        stream = self._stream(file, path, packing)
        if self.form == "parquet":
            jumping = self._opened.enter_context(seekable(stream, bool(packing)))
            return parquet_records(jumping, self.name, choice, start.rows)
        self._can_seek = file != "-" and not packing and self.form != "conll"
        self._lines = Lines(stream, (start.lines, start.bytes))
        return itertools.islice(self._parsed(choice), 0 if start.bytes else start.rows, None)

    def _parsed(self, choice: Choice) -> Iterator[Values]:
        """The records of a file with lines."""
        lines, name = self._lines, self.name
        first = lines.peek() if self.form == "json" or choice.names else b""
        if self.form == "lines" and choice.columns is not None:
            self.form = "json" if _BEGINS_JSON.match(first) else "tsv"
        if self.form == "json":
            if first.startswith(b"["):
                self._can_seek = False
                return _parse(_list_items(b"".join(lines), name), choice)
            return _parse(lines.texts(name), choice)
        if self.form == "conll":
            return conll_records(lines, name, choice)
        if self.form == "lines":
            if choice.id_column is not None:
                raise InputError(
                    f"{name} is read as plain lines, and `id_column` is given. Name the field of "
                    "the texts with `column`, or leave it out."
                )
            return (
                (place, text if isinstance(text, ValueError) else [text])
                for place, text in lines.texts(name)
            )
        if self._mend:
            lines.mend(name)
        return table_records(lines, name, self.form == "tsv", choice, self._say)

    def _stream(self, file: str, path: Path, packing: str) -> IO[bytes]:
        if file == "-":
            return sys.stdin.buffer
        check_text_file(path, "a file of texts, or -")
        raw = self._opened.enter_context(path.open("rb"))
        stream: Any = raw
        if packing:
            stream = io.BufferedReader(_Unpacked(PACKED[packing](raw), self.name), 1 << 16)
        return self._opened.enter_context(stream)


def _list_items(content: bytes, name: str) -> Iterator[tuple[str, Any]]:
    """The place and value of each item of a JSON list."""
    expected = "one object per line, or one list of objects"
    for index, item in enumerate(parse_json(decode(content, name), name, expected, list)):
        yield f"record {index} of {name}", item


def _parse(records: Iterable[tuple[str, Any]], choice: Choice) -> Iterator[Values]:
    """The chosen fields of JSON lines or objects."""
    columns = choice.columns or ("text",)
    names = [*columns, *([] if choice.id_column is None else [choice.id_column])]
    expected = f"an object with {', '.join(map(repr, names))}"
    for place, record in records:
        values: list[Any] | ValueError
        try:
            if isinstance(record, ValueError):
                raise record
            if isinstance(record, str):
                if not record.strip():
                    continue
                record = parse_json(record, place, expected, object)
            if not isinstance(record, dict):
                shown = "null" if record is None else f"a {type(record).__name__}"
                raise InputError(f"{place} holds {shown}. Give {expected}.")
            if absent := [name for name in names if name not in record and not choice.optional]:
                raise no_column(place, absent[0], list(record))
            values = [record.get(name) for name in names]
        except ValueError as error:
            values = error
        yield place, values


def check_record_text(place: str, text: Any) -> None:
    """Raises InputError if a value is not a text, or has half a surrogate pair."""
    if not isinstance(text, str):
        if isinstance(text, bytes):
            raise InputError(f"{place} has bytes for a text ({text!r:.60}). Save it as UTF-8.")
        shown = "nothing (null)" if text is None else f"a {type(text).__name__}"
        raise InputError(f"{place} has {shown} for a text. Fix the row.")
    if not text.isascii():
        check_text(text, f"the text in {place}")


class _Unpacked(io.RawIOBase):
    """A compressed stream that reports damage as `InputError`."""

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self._stream, self._name = stream, name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read(len(buffer))
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            raise InputError(
                f"{self._name} cannot be unpacked ({one_line(error)[:200]}). Copy it again, or "
                "rename it."
            ) from error
        buffer[: len(data)] = data
        return len(data)
