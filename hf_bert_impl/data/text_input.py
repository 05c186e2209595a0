"""Texts out of a file or standard input, one at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from hf_bert_impl.errors import InputError
from hf_bert_impl.files.text import JSON_LINES, check_text_file, decode_lines


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
        if column is None and file.endswith(JSON_LINES):
            column = "text"
        #: The field that is read, or None for plain lines.
        self.column = column
        #: Bytes of the input so far.
        self.bytes_read = 0
        #: Bytes of all of it, where that is known.
        self.size: int | None = None
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
            if self.column is None:
                yield text
            elif text.strip():
                yield self._field(text, number)

    def _counted(self) -> Iterator[bytes]:
        for line in self._stream:
            self.bytes_read += len(line)
            yield line

    def _field(self, line: str, number: int) -> str:
        from hf_bert_impl.data.documents import text_field  # heavy, and plain lines do without

        where = f"line {number} of {self.name}"
        assert self.column is not None
        return text_field(line, where, self.column, "name a field with `column`")
