"""Texts out of a file, a folder of `datasets` or standard input, one at a time."""

from __future__ import annotations

import bz2
import contextlib
import dataclasses
import gzip
import io
import itertools
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Self

from hf_bert_impl.data.table_records import (
    Lines,
    Record,
    Wanted,
    dataset_records,
    parquet_records,
    seekable,
    table_records,
)
from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.extras import require
from hf_bert_impl.files.text import JSON_SUFFIXES, check_text_file, decode

_PACKED = (".gz", ".bz2", ".xz", ".zst")


def endings(path: Path) -> tuple[str, str]:
    """What a file's name says of its form, as in ".csv", and of its packing, as in ".gz"."""
    packing = path.suffix.lower() if path.suffix.lower() in _PACKED else ""
    return (path.with_suffix("") if packing else path).suffix.lower(), packing


@dataclasses.dataclass(frozen=True)
class Start:
    """Where in a file reading begins: what lies before, a header included."""

    rows: int = 0
    lines: int = 0
    """0 where the file has no lines, or cannot be sought because it is packed."""
    bytes: int = 0


class RecordInput:
    """What a file, a folder of `datasets` or standard input holds, record by record.

    The ending says what is read: .csv, .tsv, JSON lines (.jsonl, .ndjson, .json), .parquet, and
    plain lines otherwise; .gz, .bz2, .xz or .zst may follow. A folder is one that `datasets` wrote.

    A line of plain text is a text even if it is empty, so that row n is that of line n; lines end
    at a line feed and nowhere else. Empty lines of JSON, CSV and TSV are passed over.

    Args:
        file: A path, or `-` for standard input.
        column: The field of JSON lines, by default `text`; the column of a table, which may be left
            out where there is only one; or several of either. Plain lines are read as JSON lines
            where it is given.
        id_column: The field or column of ids, which are texts or whole numbers.
        start: What `position` was when this file was read before.
        mend: Pass over a few bytes of CSV and TSV that are not UTF-8 (`mended_lines`).

    Raises:
        ValueError: There is no such file, or it is of another form.
    """

    def __init__(
        self,
        file: str,
        column: Wanted = None,
        id_column: str | None = None,
        start: Start | None = None,
        mend: bool = False,
    ) -> None:
        self.name = "standard input" if file == "-" else file
        #: All bytes, or rows of a table that knows their number; None where that is not known.
        self.size: int | None = None
        self._id_column, self._start, self._mend = id_column, start or Start(), mend
        self._rows, self._lines = self._start.rows, Lines(io.BytesIO())
        self._opened = contextlib.ExitStack()
        try:
            #: A record is an error where that record alone cannot be read.
            self.records = self._counted(self._records(file, column))
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

    @property
    def done(self) -> int:
        """Bytes, or rows of a table that knows their number, of the input so far."""
        return self._lines.bytes or self._rows

    def _records(self, file: str, column: Wanted) -> Iterator[Record]:
        """What the file holds, by its ending."""
        path, named = Path(file).expanduser(), (column, self._id_column)
        self._can_seek = False
        if file != "-" and path.is_dir():
            self.size, rows = dataset_records(path, self.name, *named, self._start.rows)
            return rows
        ending, packing = endings(path) if file != "-" else ("", "")
        stream = self._open(file, path, packing)
        if ending == ".parquet":
            jumping = self._opened.enter_context(seekable(stream, bool(packing)))
            self.size, rows = parquet_records(jumping, self.name, *named, self._start.rows)
            return rows
        self._can_seek = file != "-" and not packing
        mended = self.name if self._mend and ending in (".csv", ".tsv") else None
        self._lines = Lines(stream, (self._start.lines, self._start.bytes), mended)
        passed = 0 if self._start.bytes else self._start.rows
        if ending in (".csv", ".tsv"):
            found = table_records(self._lines, self.name, ending == ".tsv", *named)
        elif column is None and ending not in JSON_SUFFIXES:
            if self._id_column is not None:
                raise InputError(
                    f"{self.name} is read as plain lines, and `id_column` is given",
                    "a file whose lines have fields (.csv, .tsv, .jsonl, .parquet)",
                    "leave it out, or name the field of the texts with `column`",
                )
            found = ((place, text, None) for place, text in self._decoded())
        else:
            found = self._json(column or "text")
        return itertools.islice(found, passed, None)

    def _open(self, file: str, path: Path, packing: str) -> IO[bytes]:
        if file == "-":
            return sys.stdin.buffer
        check_text_file(path, "a file of texts, or -")
        raw = self._opened.enter_context(path.open("rb"))
        stream: Any = raw
        if packing == ".gz":
            stream = gzip.GzipFile(fileobj=raw)
        elif packing == ".bz2":
            stream = bz2.BZ2File(raw)
        elif packing == ".xz":
            stream = lzma.LZMAFile(raw)  # noqa: SIM115 -- `_opened` closes it
        elif packing:
            arrow = require("pyarrow", "train", "reading .zst")
            stream = arrow.CompressedInputStream(raw, "zstd")
        elif path.is_file():
            self.size = path.stat().st_size
        if packing:
            stream = io.BufferedReader(_Unpacked(stream, self.name), 1 << 16)
        return self._opened.enter_context(stream)

    def _counted(self, records: Iterator[Record]) -> Iterator[Record]:
        for record in records:
            self._rows += 1
            yield record

    def _decoded(self) -> Iterator[tuple[str, str | ValueError]]:
        """Where each line stands, and its text without its end."""
        self._lines.pass_over()
        for line in self._lines:
            place = f"line {self._lines.lines} of {self.name}"
            text: str | ValueError
            try:
                text = decode(line, self.name, self._lines.lines)
                text = text.removesuffix("\n").removesuffix("\r")
            except ValueError as error:
                text = error
            yield place, text

    def _json(self, column: str | tuple[str, ...]) -> Iterator[Record]:
        for place, text in self._decoded():
            if isinstance(text, ValueError):
                yield place, text, None
            elif text.strip():
                try:
                    yield place, *self._fields(text, place, column)
                except ValueError as error:
                    yield place, error, None

    def _fields(self, line: str, place: str, column: str | tuple[str, ...]) -> tuple[Any, Any]:
        """The texts and the id of a line of JSON."""
        from hf_bert_impl.files.json_files import parse_json

        columns = (column,) if isinstance(column, str) else column
        wanted = f"an object whose {' and '.join(map(repr, columns))} is a text"
        record = parse_json(line, place, wanted)
        asked = [*(("column", name) for name in columns), ("id_column", self._id_column)]
        for option, name in asked:
            if name is not None and name not in record:
                fields = ", ".join(map(repr, record)) or "no fields"
                raise InputError(
                    f"{place} has no {name!r}, only {fields}",
                    wanted if option == "column" else "an id in each line",
                    f"name a field with `{option}`",
                )
        values = [record[name] for name in columns]
        return values[0] if isinstance(column, str) else values, record.get(self._id_column)


class TextInput(RecordInput, Iterator[str]):
    """An iterator of texts, whose first is read at once so that wrong input shows early.

    Args:
        file: As for `RecordInput`.
        column: A single one.
        id_column: As there.
        on_id: Gets the place and the id of each record, in order.
        mend: As there.

    Raises:
        ValueError: There is no such file, or no text in it, or its first line cannot be read. Later
            lines raise it when they are reached.
    """

    def __init__(
        self,
        file: str,
        column: str | None = None,
        id_column: str | None = None,
        on_id: Callable[[str, Any], None] = lambda place, identifier: None,
        mend: bool = False,
    ) -> None:
        super().__init__(file, column, id_column, mend=mend)
        self._on_id = on_id
        try:
            self._texts = self._read(self.records)
            self._first: str | None = next(self._texts, None)
            if self._first is None:
                raise InputError(
                    f"{self.name} is empty", "one text a line or row", "give a file with texts"
                )
        except BaseException:
            self._opened.close()
            raise

    def __iter__(self) -> TextInput:
        return self

    def __next__(self) -> str:
        if self._first is not None:
            text, self._first = self._first, None
            return text
        return next(self._texts)

    def _read(self, records: Iterator[Record]) -> Iterator[str]:
        """Checks each record, hands on its id and gives its text."""
        for place, text, identifier in records:
            if isinstance(text, ValueError):
                raise text
            check_record_text(place, text)
            if self._id_column is not None:
                self._on_id(place, identifier)
            yield text


def check_record_text(place: str, text: Any) -> None:
    """Raises InputError if what stands at a place is no text, or has half a surrogate pair."""
    from hf_bert_impl.files.json_files import check_text

    if not isinstance(text, str):
        if isinstance(text, bytes):
            shown = f"the text in {place} is not UTF-8 ({text!r:.60})"
            raise InputError(shown, "UTF-8", "mend it")
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
