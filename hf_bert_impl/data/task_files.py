"""Rows of labelled data out of files, folders of texts, or a `datasets` id."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_bert_impl.data.arrow_records import is_dataset, records_of
from hf_bert_impl.data.table_records import Choice, no_column, say
from hf_bert_impl.data.text_folder import labelled_text_files, text_files
from hf_bert_impl.data.text_input import RecordInput
from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.extras import require
from hf_bert_impl.files.json_files import check_text
from hf_bert_impl.files.text import read_text


@dataclasses.dataclass(frozen=True)
class Row:
    """The wanted columns of one record."""

    values: tuple[Any, ...]
    """In the order in which the columns were asked for."""
    place: str
    """Where it stands, for messages: "line 7 of train.tsv"."""


def read_rows(file: str | Path, columns: Sequence[str] | None) -> list[Row]:
    """Reads columns of a file, as `RecordInput` does; its ending says of what form it is.

    A sentence of CoNLL is one row, whose columns are lists with an entry a word. A folder that
    `datasets` did not write has a subfolder for each class with a .txt file for each text; its
    columns are `text` and `label`, the subfolder.

    Args:
        file: The file, in UTF-8, or the folder.
        columns: Names of columns or fields; or numbers from 0 where the first line has no such
            names and is a row. In CoNLL negative ones count from the end. None takes the lines of
            plain text that are not blank.

    Returns:
        A row a record, in order.

    Raises:
        ValueError: There is no such file or column, it is empty, or a row cannot be read.
    """
    path = Path(file).expanduser()
    if path.is_dir() and not is_dataset(path):
        return _folder_rows(path, columns or ["text"])
    notes: list[str] = []
    wanted = None if columns is None else tuple(columns)
    with RecordInput(str(path), wanted, mend=True, say=notes.append) as source:
        rows = []
        for place, values, _ in source.sound():
            given = values if isinstance(values, list) else [values]
            if source.form == "json":
                check_text(given, place)
            if columns is not None or given[0].strip():
                rows.append(Row(tuple(given), place))
    if not rows:
        raise InputError(f"{path} is empty", "a record a line", "give a file with data")
    if notes and not (len(wanted or ()) > 1 and _is_labelled(rows)):
        say(*notes)
    return rows


def _is_labelled(rows: Sequence[Row]) -> bool:
    """Whether the first label is a number or that of other rows too, and so no column's name."""
    first, *others = (row.values[-1] for row in rows)
    return first.strip().lstrip("+-").replace(".", "", 1).isdecimal() or first in others


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
    if not len(table):
        raise InputError(
            f"split {split!r} of the data set {name!r} is empty", "records", "name another split"
        )
    choice = Choice(tuple(columns))
    records = records_of(table, f"the data set {name} {split}", choice)
    return [Row(tuple(values), place) for place, values in records]


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
