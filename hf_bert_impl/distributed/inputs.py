"""The inputs of a job in parts: their files and the checks of their rows."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from hf_bert_impl.data.arrow_records import is_dataset
from hf_bert_impl.data.text_input import FORMS, check_record_text, endings
from hf_bert_impl.errors import InputError
from hf_bert_impl.files.json_files import check_text
from hf_bert_impl.files.text import check_text_file

#: Maximum number of characters of a text; a longer row is rejected.
LONGEST_TEXT = 1_000_000
#: Endings of files to read in a folder.
SUFFIXES = tuple(ending for ending, form in FORMS.items() if form != "conll")
STANDARD_INPUT = "-"


@dataclasses.dataclass(frozen=True)
class Row:
    """A record with its number in its input."""

    number: int
    place: str
    id: Any
    texts: list[Any]
    """One value per column: a text, a wrong value, or the error of an unreadable record."""


def find_inputs(source: str) -> tuple[str, ...]:
    """Lists a file, a data set's folder, standard input, or all files of a folder, sorted.

    Raises:
        InputError: The file is missing, or the folder has no file of a supported format.
    """
    if source == STANDARD_INPUT:
        return (source,)
    path = Path(source).expanduser()
    if not path.is_dir():
        check_text_file(path, "a file of texts, a folder of such files, or -")
    if not is_folder_of_files(source):
        return (os.path.abspath(path),)
    files = []
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
        if file.is_file() and endings(file)[0] in SUFFIXES and not hidden:
            files.append(os.path.abspath(file))
    if not files:
        raise InputError(f"{source} has no files ending in {', '.join(SUFFIXES)}. Add one.")
    return tuple(files)


def is_folder_of_files(source: str) -> bool:
    """Whether the source is a folder, but not one that `datasets` wrote."""
    path = Path(source).expanduser()
    return source != "-" and path.is_dir() and not is_dataset(path)


def check_row(row: Row, id_type: str) -> None:
    """Raises ValueError if a text or the id of a row is missing, damaged or of a wrong type."""
    for text in row.texts:
        if isinstance(text, ValueError):
            raise text
        check_record_text(row.place, text)
        if len(text) > LONGEST_TEXT:
            length = f"{row.place} has {len(text):,} characters"
            raise InputError(f"{length}. The limit is {LONGEST_TEXT:,}. Split the text.")
    if row.id is None or row.id == "":
        raise InputError(f"{row.place} has no id. Add one, or leave `id_column` out.")
    if type(row.id).__name__ != id_type or (id_type == "int" and not -(2**63) <= row.id < 2**63):
        expected = "a string" if id_type == "str" else "an integer of 64 bits"
        raise InputError(
            f"{row.place} has the id {row.id!r:.40}. Use {expected}, like the first id."
        )
    if id_type == "str":
        check_text(row.id, f"the id in {row.place}")
