"""Rows of CSV, TSV and CoNLL files, one at a time; reading can begin at any row."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

from hf_bert_impl.errors import InputError, InputNote
from hf_bert_impl.files.text import decode, mended_lines

# A longer field has a quote that is never closed.
csv.field_size_limit(max(csv.field_size_limit(), 1 << 24))

#: The place of a record, and its values in the chosen columns or its error. A text that is not
#: UTF-8 is bytes.
Values = tuple[str, list[Any] | ValueError]


@dataclasses.dataclass(frozen=True)
class Choice:
    """The columns to read: names, or numbers from 0; None for the only column besides the ids.

    A row's id is its last value. With `optional`, an absent column gives None.
    """

    columns: tuple[str, ...] | None
    id_column: str | None = None
    optional: bool = False

    @property
    def names(self) -> list[str]:
        """The requested columns in the order of the values."""
        return [name for name in (*(self.columns or ()), self.id_column) if name is not None]

    def of(self, file: str, known: Sequence[str]) -> list[str | None]:
        """The columns of a table in the order of the values; None for an absent one.

        Args:
            file: For messages.
            known: All columns.

        Raises:
            InputError: A column is missing, or none is named and there are several.
        """
        for name in self.names:
            if known.count(name) != 1 and (name in known or not self.optional):
                raise no_column(file, name, known)
        if self.columns is not None:
            return [name if name in known else None for name in self.names]
        others = [name for name in known if name != self.id_column]
        if len(others) != 1:
            shown = ", ".join(map(repr, known)) or "none"
            raise InputError(
                f"{file} has {len(others)} columns ({shown}). Name the column of the texts with "
                "`column`."
            )
        return [*others, *self.names]


class Lines(Iterator[bytes]):
    """The lines of a binary stream with their ends, counted together with their bytes.

    Only a line feed ends a line: texts contain other line separators of Unicode.

    Args:
        stream: Must support `seek` where `jump` is not zero.
        jump: Lines and bytes that `pass_over` skips.
    """

    def __init__(self, stream: IO[bytes], jump: tuple[int, int] = (0, 0)) -> None:
        self._stream, self._jump = stream, jump
        self._lines: Iterator[bytes] = iter(stream.readline, b"")
        #: So far.
        self.lines = self.bytes = 0

    def peek(self) -> bytes:
        """The first line that is not blank, without leading blanks; it is read again later."""
        read: list[bytes] = []
        first = b""
        while not first and (line := next(self._lines, None)) is not None:
            read.append(line)
            first = line.removeprefix(b"\xef\xbb\xbf").lstrip()
        self._lines = itertools.chain(read, self._lines)
        return first

    def mend(self, name: str) -> None:
        """Replaces a few bytes that are not UTF-8 (`mended_lines`); `name` is the stream's."""
        self._lines = mended_lines(self._lines, name)

    def pass_over(self) -> bool:
        """Seeks to the end of the jump; returns whether there is one."""
        if self._jump[1]:
            self.lines, self.bytes = self._jump
            self._stream.seek(self.bytes)
            self._lines = iter(self._stream.readline, b"")
        return self._jump[1] > 0

    def texts(self, name: str) -> Iterator[tuple[str, str | ValueError]]:
        """The place of each line, and its text without the line end or its error."""
        self.pass_over()
        for line in self:
            place = f"line {self.lines} of {name}"
            try:
                yield place, decode(line, name, self.lines).removesuffix("\n").removesuffix("\r")
            except ValueError as error:
                yield place, error

    def __next__(self) -> bytes:
        line = next(self._lines)
        self.lines += 1
        self.bytes += len(line)
        return line


def say(note: str) -> None:
    warnings.warn(note, InputNote, stacklevel=3)


def table_records(
    lines: Lines, name: str, tabs: bool, choice: Choice, say: Callable[[str], None] = say
) -> Iterator[Values]:
    """Rows of CSV, or of TSV without quoting.

    Args:
        lines: In UTF-8.
        name: The file, for messages.
        tabs: Whether tabs separate the fields.
        choice: Names from the first line; otherwise numbers from 0, and the first line is a row.
        say: Called with a note where the first line is ambiguous.

    Raises:
        InputError: A column is missing, or the rest of the file cannot be parsed.
    """
    names = choice.names
    places: list[int | None] = []
    width = 0
    for number, fields, problem in _fields(lines, name, tabs):
        if not width:
            width = len(fields)
            has_header = set(names) <= set(fields) or not all(map(str.isdecimal, names))
            if has_header and problem is not None:
                raise problem
            if not names:
                _check_one_field(fields, name, tabs)
            known = fields if has_header else [str(place) for place in range(width)]
            chosen = choice.of(name, known)
            places = [None if column is None else known.index(column) for column in chosen]
            is_begun = lines.pass_over()
            note = _note_of_numbers(name, names, fields, has_header)
            if note and not is_begun:
                say(note)
            if is_begun or has_header:
                continue
        where = f"line {number} of {name}"
        if problem is not None:
            yield where, problem
        elif len(fields) != width:
            message = f"{where} has {len(fields)} fields, the first line {width}. Fix the line."
            yield where, InputError(message)
        else:
            yield where, [None if place is None else fields[place] for place in places]


def _check_one_field(fields: list[str], name: str, tabs: bool) -> None:
    """Raises InputError if the single field of a first line contains another form's separator."""
    if len(fields) == 1 and any(mark in fields[0] for mark in (";,|" if tabs else ";\t|")):
        raise InputError(
            f"the first line of {name} is one field, {fields[0][:60]!r}. Put "
            f"{'tabs' if tabs else 'commas'} between fields, or name this column with `column`."
        )


def _note_of_numbers(
    name: str, names: list[str], fields: list[str], has_header: bool
) -> str | None:
    """How the first line was read, where columns are given as numbers."""
    if not has_header:
        return (
            f"the first line of {name} is read as a row ({fields[int(names[0])][:40]!r}), since "
            f"column {names[0]} is a number. Name a column if this line is a header."
        )
    if names and all(column.isdecimal() and int(column) < len(fields) for column in names):
        return (
            f"the first line of {name} is read as a header, since it has the name {names[0]!r}, "
            f"which is column number {fields.index(names[0])}"
        )
    return None


def _fields(
    lines: Lines, name: str, tabs: bool
) -> Iterator[tuple[int, list[str], InputError | None]]:
    """Line number and fields of each row that is not empty, and the error of its bytes."""
    problem: InputError | None = None

    def texts() -> Iterator[str]:
        nonlocal problem
        for line in lines:
            try:
                yield decode(line, name, lines.lines)
            except InputError as error:
                problem = error
                # Keeps every byte, so the field borders stay right.
                yield line.decode("utf-8", "surrogateescape")

    # Line ends stay: within quotes they belong to the text.
    rows: Iterable[list[str]] = csv.reader(texts(), strict=True)
    if tabs:
        stripped = (text.removesuffix("\n").removesuffix("\r") for text in texts())
        rows = (text.split("\t") if text else [] for text in stripped)
    first = 1
    try:
        for fields in rows:
            if fields:
                yield first, fields, problem
            first, problem = lines.lines + 1, None
    except csv.Error as error:
        raise InputError(
            f"line {first} of {name} is no CSV ({error}). Put fields that hold commas, quotes or "
            "line breaks in double quotes."
        ) from error


def conll_records(lines: Lines, name: str, choice: Choice) -> Iterator[Values]:
    """Sentences of CoNLL: one word per line with its tags, a blank line between sentences.

    A value is a list with one entry per word. Tabs separate fields where the first line has one,
    otherwise blanks. Lines that begin with `-DOCSTART-` separate documents.

    Args:
        lines: Of the file.
        name: The file, for messages.
        choice: Numbers from 0; negative ones count from the end.

    Raises:
        InputError: A column is not a number, or a line has too few fields.
    """
    try:
        places = [int(column) for column in choice.names or ["none"]]
    except ValueError as error:
        raise InputError(
            f"the columns of {name} are {', '.join(choice.names) or 'not given'}. Give numbers "
            "from 0 (-1 is the last): a CoNLL file has no header."
        ) from error
    needed = max(2, *(place + 1 if place >= 0 else -place for place in places))
    separator = "\t" if b"\t" in lines.peek() else None
    start = ""
    sentence: list[list[str]] = [[] for _ in places]
    for where, line in itertools.chain(lines.texts(name), [("", "")]):
        if isinstance(line, ValueError):
            raise line
        # Lines of tabs separate sentences too. A word may be a Unicode blank with a tag.
        if not line.strip() or line.startswith("-DOCSTART-"):
            if start:
                yield start, sentence
            start, sentence = "", [[] for _ in places]
            continue
        fields = line.split(separator)
        if len(fields) < needed:
            raise InputError(
                f"{where} has {len(fields)} fields, and {needed} are needed. Fix the line, or name "
                "other columns."
            )
        start = start or where
        for place, values in zip(places, sentence, strict=True):
            values.append(fields[place])


def no_column(where: str, column: str, known: Sequence[str]) -> InputError:
    """The error for a column that is missing or occurs several times."""
    count = "several columns" if column in known else "no column"
    return InputError(f"{where} has {count} {column!r}. Use one of {', '.join(map(repr, known))}.")
