"""Columns of files that have lines, row by row: CSV, TSV and CoNLL.

Nothing is read whole, and reading can begin at any row.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

from hf_bert_impl.errors import InputError, InputNote
from hf_bert_impl.files.text import decode, mended_lines

#: Maximum number of characters of a field of CSV: a longer one has a quote that is never closed.
LONGEST_FIELD = 1 << 24

# A copy of the module behind `csv`, since its limit is shared by all readers of a process.
_spec: Any = importlib.util.find_spec("_csv")
_csv: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_csv)
_csv.field_size_limit(LONGEST_FIELD)

#: The place of a record, and the values of the chosen columns or the error that it has. A text that
#: is not UTF-8 is bytes.
Values = tuple[str, list[Any] | ValueError]


@dataclasses.dataclass(frozen=True)
class Choice:
    """The columns to read."""

    columns: tuple[str, ...] | None
    """Names, or numbers from 0; None for the only column besides `id_column`."""
    id_column: str | None = None
    """The ids, which are the last value of a row."""
    optional: bool = False
    """An absent column gives None."""

    @property
    def names(self) -> list[str]:
        """The columns that are asked for, in the order of the values."""
        return [it for it in (*(self.columns or ()), self.id_column) if it is not None]

    def of(self, name: str, known: Sequence[str]) -> list[str | None]:
        """The columns of a table in the order of the values; None for an absent one.

        Args:
            name: The file, for messages.
            known: All columns.

        Raises:
            InputError: There is no such column, or none is asked for and there are several.
        """
        for wanted in self.names:
            if list(known).count(wanted) != 1 and (wanted in known or not self.optional):
                raise no_column(name, wanted, known)
        if self.columns is not None:
            return [it if it in known else None for it in self.names]
        others = [it for it in known if it != self.id_column]
        if len(others) != 1:
            shown = ", ".join(map(repr, known)) or "none"
            raise InputError(
                f"{name} has {len(others)} columns ({shown})",
                "to know which of them holds the texts",
                "name it with `column`",
            )
        return [*others, *self.names]


class Lines(Iterator[bytes]):
    """The lines of a stream with their ends, and how much of it they are.

    A line ends at a line feed and nowhere else: texts hold other line separators of Unicode.

    Args:
        stream: Binary.
        jump: Lines and bytes that `pass_over` passes over; the stream can be sought where these
            are more than none.
    """

    def __init__(self, stream: IO[bytes], jump: tuple[int, int] = (0, 0)) -> None:
        self._stream, self._jump = stream, jump
        self._lines: Iterator[bytes] = iter(stream.readline, b"")
        #: So far.
        self.lines = self.bytes = 0

    def peek(self) -> bytes:
        """The first line that is not blank, without its leading blanks; it is not passed over."""
        read: list[bytes] = []
        first = b""
        while not first and (line := next(self._lines, None)) is not None:
            read.append(line)
            first = line.removeprefix(b"\xef\xbb\xbf").lstrip()
        self._lines = itertools.chain(read, self._lines)
        return first

    def mend(self, name: str) -> None:
        """Replaces a few bytes that are not UTF-8 (`mended_lines`) in the stream of that name."""
        self._lines = mended_lines(self._lines, name)

    def pass_over(self) -> bool:
        """Goes on where the jump ends, and tells whether there is one."""
        if self._jump[1]:
            self.lines, self.bytes = self._jump
            self._stream.seek(self.bytes)
            self._lines = iter(self._stream.readline, b"")
        return self._jump[1] > 0

    def texts(self, name: str) -> Iterator[tuple[str, str | ValueError]]:
        """The place of each line, and its text without its end or the error that it has."""
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
    """Warns of what an input was taken for."""
    warnings.warn(note, InputNote, stacklevel=3)


def table_records(
    lines: Lines, name: str, tabs: bool, choice: Choice, say: Callable[[str], None] = say
) -> Iterator[Values]:
    """Rows of CSV, or of TSV, which knows no quotes.

    Args:
        lines: Of the file, in UTF-8.
        name: The file, for messages.
        tabs: Whether fields have tabs between them.
        choice: Names in the first line, or else numbers from 0, with which the first line is a row
            as any other; an `InputNote` says so.
        say: Gets that note.

    Raises:
        InputError: There is no such column, or what follows cannot be told apart.
    """
    names = choice.names
    places: list[int | None] = []
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
            chosen = choice.of(name, known)
            places = [None if it is None else known.index(it) for it in chosen]
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
            given = f"{where} has {len(fields)} fields"
            yield where, InputError(given, f"{width} as in its first line", "mend the line")
        else:
            yield where, [None if place is None else fields[place] for place in places]


def _check_one_field(fields: list[str], name: str, tabs: bool) -> None:
    """Raises InputError if a first line of one field looks like several of another form."""
    if len(fields) == 1 and any(mark in fields[0] for mark in (";,|" if tabs else ";\t|")):
        raise InputError(
            f"the first line of {name} is one field, {fields[0][:60]!r}",
            f"fields with {'tabs' if tabs else 'commas'} between them",
            "write the file so, or name this column with `column`",
        )


def _note_of_numbers(
    name: str, names: list[str], fields: list[str], has_header: bool
) -> str | None:
    """What the first line was taken for, where columns are given as numbers."""
    if not has_header:
        return (
            f"the first line of {name} is taken as a text ({fields[int(names[0])][:40]!r}), since "
            f"column {names[0]} is a number; name a column if this line is a header"
        )
    if names and all(it.isdecimal() and int(it) < len(fields) for it in names):
        return (
            f"the first line of {name} is taken as a header, since it has the name {names[0]!r}, "
            f"which is column number {fields.index(names[0])}"
        )
    return None


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


def conll_records(lines: Lines, name: str, choice: Choice) -> Iterator[Values]:
    """Sentences of CoNLL: a word a line with its tags after it, a blank line between sentences.

    A value is a list with an entry a word. Fields are separated by tabs where the first line has
    one, and else by blanks. Lines that begin with `-DOCSTART-` stand between documents and are
    passed over.

    Args:
        lines: Of the file.
        name: The file, for messages.
        choice: Numbers from 0; negative ones count from the end.

    Raises:
        InputError: A column is no number, or a line has too few fields.
    """
    try:
        places = [int(column) for column in choice.names or ["none"]]
    except ValueError as error:
        raise InputError(
            f"the columns of {name} are {', '.join(choice.names) or 'not given'}",
            "numbers from 0 (-1 is the last), as a CoNLL file has no header",
            "give numbers",
        ) from error
    needed = max(2, *(place + 1 if place >= 0 else -place for place in places))
    separator = "\t" if b"\t" in lines.peek() else None
    start = ""
    sentence: list[list[str]] = [[] for _ in places]
    for where, line in itertools.chain(lines.texts(name), [("", "")]):
        if isinstance(line, ValueError):
            raise line
        # Lines with nothing but tabs separate too. A word may be a blank of Unicode, with its tag.
        if not line.strip() or line.startswith("-DOCSTART-"):
            if start:
                yield start, sentence
            start, sentence = "", [[] for _ in places]
            continue
        fields = line.split(separator)
        if len(fields) < needed:
            raise InputError(
                f"{where} has {len(fields)} fields",
                f"at least {needed}, a word and its tags",
                "mend the line, or name other columns",
            )
        start = start or where
        for place, values in zip(places, sentence, strict=True):
            values.append(fields[place])


def no_column(
    where: str,
    column: str,
    known: Sequence[str],
    remedy: str = "give names for a file with a header, or numbers from 0 for one without",
) -> InputError:
    """The error for a column that is not there, or several times."""
    names = ", ".join(map(repr, known)) or "none"
    return InputError(
        f"{where} has {'several columns' if column in known else 'no column'} {column!r}",
        f"one of {names}",
        remedy,
    )
