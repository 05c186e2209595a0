"""Rows of CSV, TSV and CoNLL files, one at a time."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from hf_bert_impl.errors import InputError, InputNote

# A longer field has a quote that is never closed.
csv.field_size_limit(max(csv.field_size_limit(), 1 << 24))
#: Maximum number of lines of a field in quotes that makes a TSV file a quoted one.
QUOTED_LINES = 1000
_END = "\0end\0"

#: The place of a row, and its values in the chosen columns or its error.
Values = tuple[str, list[Any] | ValueError]


@dataclasses.dataclass(frozen=True)
class Choice:
    """The columns to read: names, or numbers from 0; None for the only column besides the ids.

    A row's id is its last value. With `optional`, an absent column gives None. Without `header`,
    the first line of a table is a row. With `ragged`, rows may have further fields.
    """

    columns: tuple[str, ...] | None
    id_column: str | None = None
    optional: bool = False
    header: bool = True
    ragged: bool = False

    def names_or(self, *default: str) -> list[str]:
        """The requested columns in the order of the values, with default names for texts."""
        texts = default if self.columns is None else self.columns
        return [*texts, *([] if self.id_column is None else [self.id_column])]

    def of(self, file: str, known: Sequence[str]) -> list[str | None]:
        """The columns of a table in the order of the values; None for an absent one.

        Args:
            file: For messages.
            known: All columns.

        Raises:
            InputError: A column is missing, or none is named and there are several.
        """
        for name in self.names_or():
            if known.count(name) != 1 and (name in known or not self.optional):
                raise no_column(file, name, known)
        others = [name for name in known if name != self.id_column]
        if self.columns is None and len(others) != 1:
            shown = ", ".join(map(repr, known)) or "none"
            raise InputError(
                f"{file} has {len(others)} columns ({shown}). Name the column of the texts with "
                "`column`.",
                "column",
            )
        return [name if name in known else None for name in self.names_or(*others)]


def csv_records(
    lines: Iterator[str], name: str, choice: Choice, delimiter: str = ","
) -> Iterator[Values]:
    """Rows of CSV, as Python's csv reads them.

    Args:
        lines: With their ends.
        name: The file, for messages.
        choice: Names from the first line; otherwise numbers from 0, and the first line is a row.
        delimiter: The separator of fields.

    Raises:
        InputError: A column is missing, or a quote is never closed.
    """
    return _chosen(_csv_rows(lines, name, delimiter), name, choice)


def tsv_records(lines: Iterator[str], name: str, choice: Choice) -> Iterator[Values]:
    """Rows of TSV; arguments and errors as of `csv_records`.

    TSV has no quotes. Programs such as pandas write fields in quotes all the same, with quotes in
    them doubled. The first field that needs its quotes decides how the rest of a file is read.
    """
    return _chosen(_tsv_rows(lines, name), name, choice)


def _chosen(rows: Iterator[tuple[int, list[str]]], name: str, choice: Choice) -> Iterator[Values]:
    """The chosen fields of rows with their line numbers."""
    names, width = choice.names_or(), 0
    places: list[int | None] = []
    for number, fields in rows:
        if not width:
            width = len(fields)
            is_named = set(names) <= set(fields) or not all(map(str.isdecimal, names))
            has_header = choice.header and is_named
            known = fields if has_header else [str(place) for place in range(width)]
            chosen = choice.of(name, known)
            places = [None if column is None else known.index(column) for column in chosen]
            if choice.header and (note := _note(fields, names, known)):
                warnings.warn(f"the first line of {name} is read as {note}", InputNote, 2)
            if has_header:
                continue
        where = f"line {number} of {name}"
        needed = 1 + max((place for place in places if place is not None), default=-1)
        if len(fields) != width and not (choice.ragged and len(fields) >= needed):
            message = f"{where} has {len(fields)} fields, the first line {width}. Fix the line."
            yield where, InputError(message)
        else:
            yield where, [None if place is None else fields[place] for place in places]


def _note(fields: list[str], names: list[str], known: list[str]) -> str | None:
    """How the first line is read, if it could be read in another way."""
    if known != fields:
        return (
            f"a row ({fields[int(names[0])][:40]!r}), since column {names[0]} is a number. Name a "
            "column if this line is a header."
        )
    if len(fields) == 1 and not names:
        return f"the name of its column ({fields[0]!r:.60}). If it is a text, name column 0."
    if names and all(column.isdecimal() and int(column) < len(fields) for column in names):
        return (
            f"a header, since it has the name {names[0]!r}, which is column number "
            f"{fields.index(names[0])}"
        )
    return None


def _csv_rows(
    lines: Iterator[str], name: str, delimiter: str, before: int = 0
) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of each row that is not empty, after `before` lines."""
    reader = csv.reader(itertools.chain(lines, [_END]), delimiter=delimiter)
    first = before + 1
    problem: object = "a quote is never closed"
    try:
        for fields in reader:
            if fields == [_END]:
                return
            if fields and fields[-1].endswith(_END):
                break
            if fields:
                yield first, fields
            first = before + reader.line_num + 1
    except csv.Error as error:
        problem = error
    raise InputError(
        f"line {first} of {name} is no CSV ({problem}). Put fields that hold separators, quotes or "
        "line breaks in double quotes."
    )


def _tsv_rows(lines: Iterator[str], name: str) -> Iterator[tuple[int, list[str]]]:
    ahead: deque[str] = deque()
    quoted: bool | None = None
    width = number = 0
    while True:
        line = ahead.popleft() if ahead else next(lines, None)
        if line is None:
            return
        number += 1
        text = line.removesuffix("\n").removesuffix("\r")
        if quoted is None and (text.startswith('"') or '\t"' in text):
            ahead.appendleft(line)
            quoted = _is_quoted(ahead, lines, width)
            if quoted:
                yield from _csv_rows(itertools.chain(ahead, lines), name, "\t", number - 1)
                return
            ahead.popleft()
        if text:
            fields = text.split("\t")
            width = width or len(fields)
            yield number, fields


def _is_quoted(ahead: deque[str], lines: Iterator[str], width: int) -> bool | None:
    """Whether a file has fields in quotes, by its first line that has one.

    Args:
        ahead: Begins with this line; further lines that are read are added.
        lines: The lines after those.
        width: The number of fields of the first line; 0 if this is the first.

    Returns:
        None if the line does not decide it.
    """

    def read() -> Iterator[str]:
        yield from tuple(ahead)
        for line in itertools.islice(lines, QUOTED_LINES):
            ahead.append(line)
            yield line

    reader = csv.reader(read(), delimiter="\t", strict=True)
    try:
        fields = next(reader)
    except csv.Error:
        return False
    literal = [line.split("\t") for line in itertools.islice(ahead, reader.line_num)]
    if width and len(fields) != width:
        return None
    if any('"' in field for field in fields):
        return True
    if len(literal) > 1:  # unless each line is a row of its own
        return width == 1 or any(len(row) != (width or len(fields)) for row in literal)
    if not width:  # a header
        return all(field.startswith('"') for field in literal[0]) or None
    return any("\t" in field for field in fields) or None


def conll_records(lines: Iterator[str], name: str, choice: Choice) -> Iterator[Values]:
    """Sentences of CoNLL: one word per line with its tags, a blank line between sentences.

    A value is a list with one entry per word. Tabs separate fields if a line has one, otherwise
    blanks. Lines that begin with `-DOCSTART-` separate documents.

    Args:
        lines: Of the file.
        name: The file, for messages.
        choice: Numbers from 0; negative ones count from the end.

    Raises:
        InputError: A column is not a number, or a line has too few fields.
    """
    try:
        places = [int(column) for column in choice.names_or("none")]
    except ValueError as error:
        raise InputError(
            f"the columns of {name} are {', '.join(choice.names_or()) or 'not given'}. Give "
            "numbers from 0 (-1 is the last): a CoNLL file has no header."
        ) from error
    needed = max(2, *(place + 1 if place >= 0 else -place for place in places))
    start, words = 0, list[list[str]]()
    for number, line in enumerate(itertools.chain(lines, [""]), 1):
        # Lines of tabs separate sentences too. A word may be a Unicode blank with a tag.
        if line.strip() and not line.startswith("-DOCSTART-"):
            fields = line.rstrip("\r\n").split("\t" if "\t" in line else None)
            if len(fields) < needed:
                raise InputError(
                    f"line {number} of {name} has {len(fields)} fields, and {needed} are needed. "
                    "Fix the line, or name other columns."
                )
            start = start or number
            words.append(fields)
        elif words:
            columns = [[fields[place] for fields in words] for place in places]
            yield f"line {start} of {name}", columns
            start, words = 0, []


def no_column(where: str, column: str, known: Sequence[str]) -> InputError:
    """The error for a column that is missing or occurs several times."""
    count = "several columns" if column in known else "no column"
    return InputError(f"{where} has {count} {column!r}. Use one of {', '.join(map(repr, known))}.")
