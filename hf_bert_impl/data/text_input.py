"""Rows and texts out of a file, a folder of `datasets` or standard input, one at a time."""

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
from typing import IO, Any, Self

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

#: How a file is read, by its ending in any case. Other files are plain lines.
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
#: Endings of compressed files, which may follow, and how such a stream is opened.
PACKED: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": lambda raw: require("pyarrow", "train", "reading .zst").CompressedInputStream(
        raw, "zstd"
    ),
}
#: Endings of files that are known to be no text.
_BINARY = (
    *(".xlsx", ".xls", ".ods", ".docx", ".doc", ".odt", ".pdf", ".zip", ".tar", ".tgz", ".7z"),
    *(".arrow", ".feather", ".orc", ".npy", ".npz", ".pt", ".bin", ".safetensors", ".pkl", ".db"),
)

_BEGINS_JSON = re.compile(rb'\{\s*["}]|\[\s*(\{|$)')

#: The place of a record; its text, a list of values where several columns are asked for, or the
#: error that it has; and its id (None where no column of ids is asked for).
Record = tuple[str, Any, Any]
#: The columns to read: one, several, or None for the only column.
Wanted = str | None | tuple[str, ...]


def endings(path: Path) -> tuple[str, str]:
    """The ending of a file's name, as in ".csv", and that of its compression, as in ".gz"."""
    packing = path.suffix.lower() if path.suffix.lower() in PACKED else ""
    return (path.with_suffix("") if packing else path).suffix.lower(), packing


def form_of(file: str | Path) -> str:
    """How a file or folder is read: one of `FORMS`, or "folder".

    Raises:
        InputError: Its ending is that of another kind of file.
    """
    path = Path(file).expanduser()
    if path.is_dir():
        return "folder"
    ending, _ = endings(path)
    if ending in _BINARY:
        raise InputError(
            f"{file} ends in {ending}",
            f"one of {', '.join(FORMS)}, which say how it is read ({', '.join(PACKED)} may follow)",
            "save it in one of these forms, such as .csv",
        )
    return FORMS.get(ending, "lines")


@dataclasses.dataclass(frozen=True)
class Start:
    """Where in a file reading begins: what lies before, a header included."""

    rows: int = 0
    lines: int = 0
    """0 where the file has no lines, or cannot be sought because it is packed."""
    bytes: int = 0


class RecordInput:
    """The records of a file, a folder of `datasets` or standard input, one at a time.

    The ending says how a file is read (`FORMS`); .gz, .bz2, .xz or .zst may follow. JSON is an
    object a line, or one list of objects. A folder is one that `datasets` wrote.

    A line of plain text is a text even if it is empty, so that row n is that of line n; lines end
    at a line feed and nowhere else. Where a column is named, the lines of plain text and of
    standard input have fields: they are JSON if the first begins an object or a list of objects,
    and TSV otherwise. Empty lines of JSON, CSV and TSV are passed over.

    Args:
        file: A path, or `-` for standard input.
        column: The column of a table or the field of JSON; or several. None reads the only column,
            or `text` in JSON. In CSV, TSV and CoNLL it may be a number from 0.
        id_column: The field or column of ids, which are texts or whole numbers.
        start: What `position` was when this file was read before.
        mend: Pass over a few bytes of CSV and TSV that are not UTF-8 (`mended_lines`).
        optional: An absent column gives None, and is no error.
        say: Gets a note where the first line of a table could be read in another way.

    Raises:
        ValueError: There is no such file, or it is of another form.
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
            found = self._open(file, Choice(columns, id_column, optional))
            #: A record is an error where that record alone cannot be read.
            self.records: Iterator[Record] = map(self._record, found)
        except BaseException:
            self._opened.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._opened.close()

    @property
    def position(self) -> Start:
        """What lies before the next record."""
        if self._can_seek:
            return Start(self._rows, self._lines.lines, self._lines.bytes)
        return Start(self._rows)

    def sound(self) -> Iterator[Record]:
        """The records; one that cannot be read raises its error."""
        for record in self.records:
            if isinstance(record[1], ValueError):
                raise record[1]
            yield record

    def _record(self, found: Values) -> Record:
        self._rows += 1
        place, values = found
        if isinstance(values, ValueError):
            return place, values, None
        identifier = values.pop() if self._has_ids else None
        return place, values[0] if self._is_single else values, identifier

    def _open(self, file: str, choice: Choice) -> Iterator[Values]:
        """Opens the file, and reads it as its ending says."""
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
        """The records of a file that has lines."""
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
                    f"{name} is read as plain lines, and `id_column` is given",
                    "a file whose lines have fields (.csv, .tsv, .jsonl, .parquet)",
                    "leave it out, or name the field of the texts with `column`",
                )
            texts = lines.texts(name)
            return ((at, it if isinstance(it, ValueError) else [it]) for at, it in texts)
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
    """The place and the value of each item of a list of JSON."""
    expected = "one object a line, or one list of objects"
    for index, item in enumerate(parse_json(decode(content, name), name, expected, list)):
        yield f"record {index} of {name}", item


def _parse(found: Iterable[tuple[str, Any]], choice: Choice) -> Iterator[Values]:
    """Values of the chosen fields of lines of JSON, or of objects."""
    columns = choice.columns or ("text",)
    names = [*columns, *([] if choice.id_column is None else [choice.id_column])]
    expected = f"an object with {', '.join(map(repr, names))}"
    for place, record in found:
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
                raise InputError(f"{place} holds {shown}", expected, "mend it")
            if absent := [it for it in names if it not in record and not choice.optional]:
                remedy = "name another with `column`, or mend the row"
                raise no_column(place, absent[0], list(record), remedy)
            values = [record.get(it) for it in names]
        except ValueError as error:
            values = error
        yield place, values


def check_record_text(place: str, text: Any) -> None:
    """Raises InputError if the value at a place is no text, or has half a surrogate pair."""
    if not isinstance(text, str):
        if isinstance(text, bytes):
            raise InputError(f"{place} has bytes for a text ({text!r:.60})", "UTF-8", "mend it")
        shown = "nothing (null)" if text is None else f"a {type(text).__name__}"
        raise InputError(f"{place} has {shown} for a text", "a text", "mend it")
    if not text.isascii():
        check_text(text, f"the text in {place}")


class _Unpacked(io.RawIOBase):
    """A compressed stream whose damage is one clear line."""

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self._stream, self._name = stream, name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read(len(buffer))
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            raise InputError(
                f"{self._name} cannot be unpacked ({one_line(error)[:200]})",
                "a whole file of the form that its ending names",
                "copy it again, or rename it",
            ) from error
        buffer[: len(data)] = data
        return len(data)
