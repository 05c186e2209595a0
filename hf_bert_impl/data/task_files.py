"""Rows of labelled data from files, folders of texts, or a `datasets` id."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from hf_bert_impl.data.arrow_records import is_dataset, records_of
from hf_bert_impl.data.table_records import Choice, no_column
from hf_bert_impl.data.text_folder import labelled_text_files, read_lenient, text_files
from hf_bert_impl.data.text_input import Row, form_of, read_records, sound
from hf_bert_impl.errors import InputError, InputNote, one_line
from hf_bert_impl.extras import require
from hf_bert_impl.progress import dataset_bars


def read_rows(file: str | Path, columns: Sequence[str] | None) -> list[Row]:
    """Reads columns of a file as `read_records` does; the ending says its form.

    A sentence of CoNLL is one row whose columns are lists with one entry per word. A folder that
    `datasets` did not write has one subfolder per class with one .txt file per text; its columns
    are `text` and `label`.

    Args:
        file: The UTF-8 file, or the folder.
        columns: Names of columns or fields, or numbers from 0 for a table without a header. In
            CoNLL, negative numbers count from the end. None reads the lines of plain text that are
            not blank.

    Raises:
        ValueError: The file or a column is missing, the file is empty, or a row cannot be read.
    """
    path = Path(file).expanduser()
    is_folder = path.is_dir() and not is_dataset(path)
    is_numbered = len(columns or ()) > 1 and all(map(str.isdecimal, columns or ()))
    found = (
        _folder_rows(path, columns or ["text"])
        if is_folder
        else read_records(path, columns, header=not is_numbered)
    )
    rows = [row for row in sound(found, path) if columns is not None or row.values[0].strip()]
    if not rows:
        raise InputError(f"{path} is empty. Give a file with one record per line.")
    if is_numbered and form_of(path) in ("csv", "tsv") and not _is_labelled(rows):
        note = f"the first line of {path} is read as a row ({rows[0].values[0][:40]!r}), since "
        warnings.warn(
            f"{note}its columns are numbers. Name columns if it is a header.", InputNote, 2
        )
    return rows


def _is_labelled(rows: Sequence[Row]) -> bool:
    """Whether the first label is a number or occurs again, so that it is not a column's name."""
    first, *others = (row.values[-1] for row in rows)
    return first.strip().lstrip("+-").replace(".", "", 1).isdecimal() or first in others


def read_dataset(name: str, split: str, columns: Sequence[str]) -> list[Row]:
    """Reads a split by the `datasets` library; class numbers become their names.

    Args:
        name: A hub id or a folder, with `:CONFIGURATION` after it where there are several.
        split: Such as "train" or "train[:1000]".
        columns: Names of columns.

    Raises:
        ValueError: The data set, split or a column is missing, or `datasets` is not installed.
    """
    datasets = require("datasets", "train", "reading a data set by its id")
    path, _, configuration = name.partition(":")
    try:
        with dataset_bars(True):
            table = datasets.load_dataset(path, configuration or None, split=split)
    except (ValueError, OSError, datasets.exceptions.DatasetsError) as error:
        reason = one_line(error)[:300]
        raise InputError(
            f"split {split!r} of the data set {name!r} could not be read ({reason}). Check the "
            "name (ID or ID:CONFIGURATION) and the network."
        ) from error
    if not len(table):
        raise InputError(f"split {split!r} of the data set {name!r} is empty. Name another split.")
    choice = Choice(tuple(columns))
    records = records_of(table, f"the data set {name} {split}", choice)
    return [Row(place, tuple(values)) for place, values in records]


def _folder_rows(folder: Path, columns: Sequence[str]) -> Iterator[Row]:
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
            f"{folder} is a folder without {lacks}. Give a file of labelled data, or a folder with "
            "one subfolder per class (pos/1.txt)."
        )
    for file, name in files:
        record = {"text": read_lenient(file), "label": name}
        yield Row(str(file), [record[column] for column in columns])
