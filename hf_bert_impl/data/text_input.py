"""Texts out of a file or standard input, one at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from hf_bert_impl.errors import InputError
from hf_bert_impl.files.text import check_text_file, decode_lines


class TextInput(Iterator[str]):
    """An iterator of texts, whose first is read at once so that wrong input shows early.

    A line of plain text is a text even if it is empty, so that row n is that of line n; lines end
    at a line feed and nowhere else. Empty JSON lines are passed over.

    Args:
        file: A path, or `-` for standard input.
        column: The field of JSON lines; None reads plain lines, but for a .jsonl the field `text`.

    Raises:
        ValueError: There is no such file, or no text in it, or its first line cannot be read. Later
            lines raise it when they are reached.
    """

    def __init__(self, file: str, column: str | None = None) -> None:
        self.name = "standard input" if file == "-" else file
        if column is None and file.endswith((".jsonl", ".ndjson")):
            column = "text"
        #: The field that is read, or None for plain lines.
        self.column = column
        #: Bytes of the input so far.
        self.bytes_read = 0
        #: Bytes of all of it, where that is known.
        self.size: int | None = None
        self._line = 0
        self._stream = self._open(file)
        self._texts = self._read()
        try:
            self._first: str | None = next(self._texts, None)
            if self._first is None:
                raise InputError(
                    f"{self.name} is empty", "one text a line", "give a file with texts"
                )
        except BaseException:
            self.__exit__()
            raise

    def _open(self, file: str) -> IO[bytes]:
        if file == "-":
            return sys.stdin.buffer
        path = Path(file).expanduser()
        check_text_file(path, "a file of texts, or -")
        stream = path.open("rb")
        if path.is_file():
            self.size = path.stat().st_size
        return stream

    def __enter__(self) -> TextInput:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._stream is not sys.stdin.buffer:
            self._stream.close()

    def __iter__(self) -> TextInput:
        return self

    def __next__(self) -> str:
        if self._first is not None:
            text, self._first = self._first, None
            return text
        return next(self._texts)

    def _read(self) -> Iterator[str]:
        for number, text in decode_lines(self._counted(), self.name):
            self._line = number
            if self.column is None:
                yield text
            elif text.strip():
                yield self._field(text)

    def _counted(self) -> Iterator[bytes]:
        for line in self._stream:
            self.bytes_read += len(line)
            yield line

    def _field(self, line: str) -> str:
        """The text of a JSON line."""
        from hf_bert_impl.model.json_files import check_text, parse_json

        assert self.column is not None
        wanted = f"an object whose {self.column!r} is a text"
        record = parse_json(line, f"line {self._line} of {self.name}", wanted)
        if self.column not in record:
            fields = ", ".join(map(repr, record)) or "no fields"
            raise self._wrong(
                f"has no {self.column!r}, only {fields}", wanted, "name a field with `column`"
            )
        text = record[self.column]
        if not isinstance(text, str):
            raise self._wrong(
                f"has a {type(text).__name__} as {self.column!r}", wanted, "mend the line"
            )
        check_text(text, f"{self.column!r} in line {self._line} of {self.name}")
        return text

    def _wrong(self, what: str, expected: str, remedy: str) -> InputError:
        return InputError(f"line {self._line} of {self.name} {what}", expected, remedy)
