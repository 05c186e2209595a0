"""Texts out of a file, a folder of `datasets` or standard input, one at a time."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from hf_bert_impl.data.table_records import (
    DatasetRecords,
    ParquetRecords,
    Record,
    seekable,
    table_records,
)
from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.extras import require
from hf_bert_impl.files.text import check_text_file, decode_lines, mended_lines

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


class TextInput(Iterator[str]):
    """An iterator of texts, whose first is read at once so that wrong input shows early.

    The ending says what is read: .csv, .tsv, JSON lines (.jsonl, .ndjson, .json), .parquet, and
    plain lines otherwise; .gz, .bz2, .xz or .zst may follow. A folder is one that `datasets` wrote.

    A line of plain text is a text even if it is empty, so that row n is that of line n; lines end
    at a line feed and nowhere else. Empty lines of JSON, CSV and TSV are passed over.

    Args:
        file: A path, or `-` for standard input.
        column: The field of JSON lines, by default `text`; the column of a table, which may be left
            out where there is only one. Plain lines are read as JSON lines where it is given.
        id_column: The field or column of ids, which are texts or whole numbers.
        on_id: Gets the place and the id of each record, in order.
        mend: Pass over a few bytes of CSV and TSV that are not UTF-8 (`mended_lines`).

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
        self.name = "standard input" if file == "-" else file
        #: Bytes, or rows of a table that knows their number, of the input so far.
        self.done = 0
        #: All of them, where that is known.
        self.size: int | None = None
        self._id_column, self._on_id = id_column, on_id
        self._mend = mend
        self._opened = contextlib.ExitStack()
        try:
            self._texts = self._read(self._records(file, column))
            self._first: str | None = next(self._texts, None)
            if self._first is None:
                raise InputError(
                    f"{self.name} is empty", "one text a line or row", "give a file with texts"
                )
        except BaseException:
            self._opened.close()
            raise

    def __enter__(self) -> TextInput:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._opened.close()

    def __iter__(self) -> TextInput:
        return self

    def __next__(self) -> str:
        if self._first is not None:
            text, self._first = self._first, None
            return text
        return next(self._texts)

    def _records(self, file: str, column: str | None) -> Iterator[Record]:
        """What the file holds, by its ending."""
        path, named = Path(file).expanduser(), (column, self._id_column)
        if file != "-" and path.is_dir():
            rows = DatasetRecords(path, self.name, *named)
            self.size = rows.rows
            return self._counted_rows(rows)
        packing = path.suffix.lower() if path.suffix.lower() in COMPRESSED else ""
        ending = (path.with_suffix("") if packing else path).suffix.lower() if file != "-" else ""
        stream = self._open(file, path, packing)
        if ending == ".parquet":
            jumping = self._opened.enter_context(seekable(stream, bool(packing)))
            table = ParquetRecords(jumping, self.name, *named)
            self.size = table.rows
            return self._counted_rows(table)
        lines = self._counted(stream)
        if ending in (".csv", ".tsv"):
            lines = mended_lines(lines, self.name) if self._mend else lines
            return table_records(lines, self.name, ending == ".tsv", *named)
        if column is None and ending not in JSON_SUFFIXES:
            if self._id_column is not None:
                raise InputError(
                    f"{self.name} is read as plain lines, and `id_column` is given",
                    "a file whose lines have fields (.csv, .tsv, .jsonl, .parquet)",
                    "leave it out, or name the field of the texts with `column`",
                )
            return self._plain(lines)
        return self._json(lines, column or "text")

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

    def _counted(self, stream: IO[bytes]) -> Iterator[bytes]:
        for line in stream:
            self.done += len(line)
            yield line

    def _counted_rows(self, rows: Iterator[Record]) -> Iterator[Record]:
        for row in rows:
            self.done += 1
            yield row

    def _plain(self, lines: Iterator[bytes]) -> Iterator[Record]:
        for number, text in decode_lines(lines, self.name):
            yield f"line {number} of {self.name}", text, None

    def _json(self, lines: Iterator[bytes], column: str) -> Iterator[Record]:
        from hf_bert_impl.model.json_files import parse_json

        wanted = f"an object whose {column!r} is a text"
        for number, line in decode_lines(lines, self.name):
            if not line.strip():
                continue
            place = f"line {number} of {self.name}"
            record = parse_json(line, place, wanted)
            for name, option in ((column, "column"), (self._id_column, "id_column")):
                if name is not None and name not in record:
                    fields = ", ".join(map(repr, record)) or "no fields"
                    raise InputError(
                        f"{place} has no {name!r}, only {fields}",
                        wanted if option == "column" else "an id in each line",
                        f"name a field with `{option}`",
                    )
            yield place, record[column], record.get(self._id_column)

    def _read(self, records: Iterator[Record]) -> Iterator[str]:
        """Checks each record, hands on its id and gives its text."""
        from hf_bert_impl.model.json_files import check_text

        for place, text, identifier in records:
            if not isinstance(text, str):
                shown = "nothing (null)" if text is None else f"a {type(text).__name__}"
                raise InputError(f"{place} has {shown} for a text", "a text", "mend it")
            if not text.isascii():
                check_text(text, f"the text in {place}")
            if self._id_column is not None:
                self._on_id(place, identifier)
            yield text


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
