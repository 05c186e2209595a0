"""Rows of labelled data out of TSV, CSV, JSON lines and CoNLL files, or out of a `datasets` id."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hf_bert_impl.data.table_records import Lines, no_column, say, table_records
from hf_bert_impl.data.text_folder import labelled_text_files, text_files
from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.extras import require
from hf_bert_impl.files.json_files import check_text, parse_json
from hf_bert_impl.files.text import JSON_SUFFIXES, check_text_file, numbered_lines, read_text

TAB_SUFFIXES = (".tsv", ".txt", ".tab")
CONLL_SUFFIXES = (".conll", ".bio", ".iob", ".iob2")
SUFFIXES = (*TAB_SUFFIXES, ".csv", *JSON_SUFFIXES, *CONLL_SUFFIXES)


@dataclasses.dataclass(frozen=True)
class Row:
    """The wanted columns of one record."""

    values: tuple[Any, ...]
    """In the order in which the columns were asked for."""
    place: str
    """Where it stands, for messages: "line 7 of train.tsv"."""


def read_rows(file: str | Path, columns: Sequence[str]) -> list[Row]:
    """Reads columns of a file; its ending says of what form it is.

    Tab-separated text (.tsv, .txt) knows no quotes, as the GLUE and SentEval files are written; in
    .csv a field may stand in quotes. JSON is an object a line, or one list of objects. A sentence
    of CoNLL is one row, whose columns are lists with an entry a word. A folder has a subfolder for
    each class with a .txt file for each text; its columns are `text` and `label`, the subfolder.

    Args:
        file: The file, in UTF-8, or the folder.
        columns: Names out of the first line (of the JSON objects); or numbers from 0, where it
            has no such names and is a row. In CoNLL they are numbers, and negative ones count from
            the end.

    Returns:
        A row a record, in order. Empty lines are passed over.

    Raises:
        ValueError: There is no such file or column, it is empty, or a line cannot be read.
    """
    path = Path(file).expanduser()
    if path.is_dir():
        return _folder_rows(path, columns)
    if path.suffix not in SUFFIXES:
        raise InputError(
            f"{path} ends in {path.suffix or 'nothing'}",
            f"one of {', '.join(SUFFIXES)}, which say how it is read",
            "rename it",
        )
    check_text_file(path, "labelled data")
    if path.suffix in CONLL_SUFFIXES:
        rows = _conll_rows(path, columns)
    elif path.suffix in JSON_SUFFIXES:
        rows = list(_json_rows(path, columns))
    else:
        rows = _table_rows(path, columns)
    if not rows:
        raise InputError(f"{path} is empty", "a record a line", "give a file with data")
    return rows


def read_lines(file: str | Path) -> list[Row]:
    """Reads plain text: a row with one value for each line that is not blank.

    Raises:
        ValueError: There is no such file, it is empty or not UTF-8.
    """
    path = Path(file).expanduser()
    check_text_file(path, "one text a line")
    rows = [
        Row((line,), f"line {number} of {path}")
        for number, line in numbered_lines(path)
        if line.strip()
    ]
    if not rows:
        raise InputError(f"{path} is empty", "one text a line", "give a file with texts")
    return rows


def read_dataset(name: str, split: str, columns: Sequence[str]) -> list[Row]:
    """Reads a split of a data set by the `datasets` library.

    Class numbers become the names that the data set gives them.

    Args:
        name: A hub id or a folder, with `:CONFIGURATION` after it where there are several.
        split: The split, such as "train" or "train[:1000]".
        columns: Names of columns.

    Returns:
        A row a record.

    Raises:
        ValueError: There is no such data set, split or column; or `datasets` is missing.
    """
    datasets = require("datasets", "train", "reading a data set by its id")
    path, _, configuration = name.partition(":")
    try:
        table = datasets.load_dataset(path, configuration or None, split=split)
    except (ValueError, OSError, datasets.exceptions.DatasetsError) as error:
        reason = one_line(error)[:300]
        raise InputError(
            f"split {split!r} of the data set {name!r} could not be read ({reason})",
            "a hub id or a folder, ID:CONFIGURATION where there are several",
            "check name and network",
        ) from error
    missing = [column for column in columns if column not in table.column_names]
    if missing:
        raise no_column(f"the data set {name}", missing[0], table.column_names)
    if not len(table):
        raise InputError(
            f"split {split!r} of the data set {name!r} is empty", "records", "name another split"
        )
    names = [_class_names(table.features[column]) for column in columns]
    return [
        Row(
            tuple(
                _named(record[column], classes)
                for column, classes in zip(columns, names, strict=True)
            ),
            f"row {number} of {name} {split}",
        )
        for number, record in enumerate(table.select_columns(list(columns)))
    ]


def _folder_rows(folder: Path, columns: Sequence[str]) -> list[Row]:
    known = ("text", "label")
    unknown = [column for column in columns if column not in known]
    if unknown:
        raise no_column(f"the folder {folder}", unknown[0], known)
    files: list[tuple[Path, str | None]] = [*labelled_text_files(folder)]
    if "label" not in columns:
        files = [(file, None) for file in text_files(folder)]
    if not files:
        lacks = "subfolders with texts in them" if "label" in columns else "texts in it"
        raise InputError(
            f"{folder} is a folder without {lacks}",
            "a file of labelled data, or a folder with a subfolder for each class (pos/1.txt)",
            "name one of these",
        )
    rows = []
    for file, name in files:
        record = {"text": read_text(file), "label": name}
        rows.append(Row(tuple(record[column] for column in columns), str(file)))
    return rows


def _class_names(feature: Any) -> list[str] | None:
    feature = getattr(feature, "feature", feature)  # of a list
    return getattr(feature, "names", None)


def _named(value: Any, classes: list[str] | None) -> Any:
    if classes is None:
        return value
    if isinstance(value, list):
        return [_named(item, classes) for item in value]
    # -1 stands for a label that the makers of the data set keep to themselves.
    return classes[value] if value is not None and value >= 0 else None


def _table_rows(path: Path, columns: Sequence[str]) -> list[Row]:
    rows: list[Row] = []
    notes: list[str] = []
    with path.open("rb") as stream:
        lines = Lines(stream, mended=str(path))
        tabs = path.suffix in TAB_SUFFIXES
        records = table_records(lines, str(path), tabs, tuple(columns), None, notes.append)
        for place, values, _ in records:
            if isinstance(values, InputError):
                raise values
            rows.append(Row(tuple(values), place))
    labels = [row.values[-1] for row in rows]
    # A label that is a number, or that other rows have too, is not the name of its column.
    is_row = len(columns) > 1 and rows and (_is_number(labels[0]) or labels[0] in labels[1:])
    for note in () if is_row else notes:
        say(note)
    return rows


def _is_number(text: str) -> bool:
    return text.strip().lstrip("+-").replace(".", "", 1).isdecimal()


def _json_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    for place, record in _records(path):
        if not isinstance(record, dict):
            raise InputError(
                f"{place} holds a {type(record).__name__}",
                f"an object with {', '.join(map(repr, columns))}",
                "mend it",
            )
        for column in columns:
            if column not in record:
                raise no_column(place, column, list(record))
            check_text(record[column], f"{column!r} in {place}")
        yield Row(tuple(record[column] for column in columns), place)


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    expected = "one object a line, or one list of objects"
    first = next((line for _, line in numbered_lines(path) if line.strip()), "")
    if first.lstrip().startswith("["):
        for index, item in enumerate(parse_json(read_text(path), str(path), expected, object)):
            yield f"record {index} of {path}", item
        return
    for number, line in numbered_lines(path):
        if line.strip():
            where = f"line {number} of {path}"
            yield where, parse_json(line, where, expected, object)


def _conll_rows(path: Path, columns: Sequence[str]) -> list[Row]:
    """A word a line with its tags after it, a blank line between sentences.

    Fields are separated by tabs where the first line has one, and else by blanks. Lines that begin
    with `-DOCSTART-` stand between documents and are passed over.
    """
    try:
        places = [int(column) for column in columns]
    except ValueError as error:
        raise InputError(
            f"the columns of {path} are {', '.join(columns)}",
            "numbers from 0 (-1 is the last), as a CoNLL file has no header",
            "give numbers",
        ) from error
    needed = max(2, *(place + 1 if place >= 0 else -place for place in places))
    rows: list[Row] = []
    inside, separator = False, None
    for number, line in numbered_lines(path):
        if number == 1 and "\t" in line:
            separator = "\t"
        # Lines with nothing but tabs separate too. A word may be a blank of Unicode, with its tag.
        if not line.strip() or line.startswith("-DOCSTART-"):
            inside = False
            continue
        fields = line.split(separator)
        if len(fields) < needed:
            raise InputError(
                f"line {number} of {path} has {len(fields)} fields",
                f"at least {needed}, a word and its tags",
                "mend the line, or name other columns",
            )
        if not inside:
            rows.append(Row(tuple([] for _ in places), f"line {number} of {path}"))
            inside = True
        for place, values in zip(places, rows[-1].values, strict=True):
            values.append(fields[place])
    return rows
