"""Rows of a file, a folder or standard input, one at a time."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import itertools
import lzma
import os
import re
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hf_bert_impl.data.arrow_records import dataset_records, is_dataset, parquet_records
from hf_bert_impl.data.table_records import (
    Choice,
    Values,
    conll_records,
    csv_records,
    no_column,
    tsv_records,
)
from hf_bert_impl.errors import InputError, InputNote, kind_of, one_line
from hf_bert_impl.files.json_files import parse_json
from hf_bert_impl.files.text import check_text_file

#: How a file is read, by its ending in any case. All others are plain lines.
FORMS = {
    **dict.fromkeys((".txt",), "lines"),
    **dict.fromkeys((".tsv", ".tab"), "tsv"),
    **dict.fromkeys((".csv",), "csv"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "json"),
    **dict.fromkeys((".parquet",), "parquet"),
    **dict.fromkeys((".conll", ".bio", ".iob", ".iob2"), "conll"),
}
#: Further endings of compressed files, and how each is opened.
PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
#: Endings of binary files.
_BINARY = (
    *(".xlsx", ".xls", ".ods", ".docx", ".doc", ".odt", ".pdf", ".zip", ".tar", ".tgz", ".7z"),
    *(".arrow", ".feather", ".orc", ".npy", ".npz", ".pt", ".bin", ".safetensors", ".pkl", ".db"),
    ".zst",
)
#: Byte-order marks of UTF-16, as undecodable bytes.
_UTF_16 = ("\udcff\udcfe", "\udcfe\udcff")
_BEGINS_JSON = re.compile(r'\{\s*["}]|\[\s*(\{|$)')
#: Names of one column or several; None for the only one.
Columns = str | Sequence[str] | None
STANDARD_INPUT = "-"


class Row(NamedTuple):
    """A row of an input. Bytes of a text that are not UTF-8 are surrogates U+DC80 to U+DCFF."""

    place: str
    """For messages, as in "line 7 of train.tsv"."""
    values: Sequence[Any]
    """A value per column; none if the row cannot be read."""
    id: Any = None
    error: ValueError | None = None
    """Why it cannot be read."""


def form_of(file: str | Path) -> str:
    """How a file or folder is read: one of `FORMS`' values, or "folder".

    Raises:
        InputError: Its ending is that of a binary file or of compressed Parquet.
    """
    path = Path(file).expanduser()
    if path.is_dir():
        return "folder"
    packing = path.suffix.lower() if path.suffix.lower() in PACKED else ""
    ending = (path.with_suffix("") if packing else path).suffix.lower()
    form = FORMS.get(ending, "lines")
    if ending in _BINARY or (packing and form == "parquet"):
        raise InputError(
            f"{file} ends in {ending}{packing}. Supported: {', '.join(FORMS)}, and text followed "
            f"by {', '.join(PACKED)}. Unpack it, or save it as .csv."
        )
    return form


def find_inputs(source: str) -> tuple[str, ...]:
    """Lists a file, a data set's folder, standard input, or all files of a folder, sorted.

    Raises:
        InputError: The file is missing or of another form, or the folder has no such file.
    """
    if source == STANDARD_INPUT:
        return (source,)
    path = Path(source).expanduser()
    form_of(source)
    if not path.is_dir():
        check_text_file(path, "a file of texts, a folder of such files, or -")
    if not path.is_dir() or is_dataset(path):
        return (os.path.abspath(path),)
    known = [ending for ending, form in FORMS.items() if form != "conll"]
    names = tuple(ending + packing for ending in known for packing in ("", *PACKED))
    files = []
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
        if file.is_file() and file.name.lower().endswith(names) and not hidden:
            form_of(file)
            files.append(os.path.abspath(file))
    if not files:
        raise InputError(f"{source} has no files ending in {', '.join(known)}. Add one.")
    return tuple(files)


def read_records(
    file: str | Path,
    columns: Columns = None,
    id_column: str | None = None,
    *,
    optional: bool = False,
    header: bool = True,
    ragged: bool = False,
) -> Iterator[Row]:
    """The rows of a file, of a folder that `datasets` wrote, or of standard input, in one pass.

    The ending says how a file is read (`FORMS`); .gz, .bz2 or .xz may follow. JSON is one object
    per line, or one list of objects. Plain text has one row per line, even if it is empty. With a
    column, plain text and standard input have fields: JSON if they begin with an object or a list
    of objects, otherwise TSV. Empty lines of JSON, CSV and TSV are skipped.

    Args:
        file: A path, or `-` for standard input.
        columns: Columns or JSON fields. None reads the only column, or `text` in JSON. In CSV, TSV
            and CoNLL, numbers from 0 work too.
        id_column: The column of ids.
        optional: An absent column gives None.
        header: Whether the first line of CSV or TSV may be a header. If not, columns are numbers.
        ragged: Whether rows of CSV or TSV may have further fields.

    Yields:
        All rows, with the unreadable ones.

    Raises:
        ValueError: The file is missing or of another form, or lacks a column.
    """
    named = (columns,) if isinstance(columns, str) else columns
    chosen = None if named is None else tuple(named)
    choice = Choice(chosen, id_column, optional, header, ragged)
    file = str(file)
    path, is_input = Path(file).expanduser(), file == STANDARD_INPUT
    form = "lines" if is_input else form_of(file)
    if not is_input and form != "folder":
        check_text_file(path, "a file of texts, or -")
    with contextlib.ExitStack() as stack:
        rows: Iterator[Values]
        if form == "folder":
            rows = dataset_records(path, file, choice)
        elif form == "parquet":
            rows = parquet_records(path, file, choice)
        else:
            # Texts contain other line separators of Unicode. CSV has the line ends of Python's csv.
            text = stack.enter_context(_opened(file, path, "" if form == "csv" else "\n"))
            read, first = [], ""
            for first in text:
                read.append(first)
                if first.strip():
                    break
            if read and read[0].startswith(_UTF_16):
                raise InputError(f"{file} is UTF-16. Save it as UTF-8.")
            if form == "lines" and choice.columns is not None:
                form = "json" if _BEGINS_JSON.match(first.lstrip()) else "tsv"
            if form == "json" and first.lstrip().startswith("["):
                form = "json list"
            name = "standard input" if is_input else file
            rows = _READERS[form](itertools.chain(read, text), name, choice)
        for place, values in rows:
            if isinstance(values, ValueError):
                yield Row(place, (), error=values)
            elif id_column is None:
                yield Row(place, values)
            else:
                yield Row(place, values[:-1], values[-1])


def sound(rows: Iterable[Row], file: str | Path) -> Iterator[Row]:
    """Rows for a command that needs all of them.

    Bytes that are not UTF-8 are replaced by U+FFFD, which BERT's tokenizers skip: texts from the
    web have a few. A note counts their rows.

    Raises:
        ValueError: The first row that cannot be read; or, at the end, more than 1% of the rows are
            not UTF-8.
    """
    first, bad, count = "", 0, 0
    for row in rows:
        count += 1
        if row.error is not None:
            raise row.error
        values = tuple(_mended(value, row.place) for value in row.values)
        if values != tuple(row.values):
            first, bad = first or row.place, bad + 1
        yield row._replace(values=values)
    if bad * 100 > count:
        raise InputError(
            f"{first} is not UTF-8, like {bad} of {count} rows. Save the file as UTF-8."
        )
    if bad:
        note = f"{bad} row(s) of {file} have bytes that are not UTF-8, such as {first}"
        warnings.warn(note, InputNote, stacklevel=2)


def _mended(value: Any, place: str) -> Any:
    if isinstance(value, list):
        return [_mended(item, place) for item in value]
    if not isinstance(value, str) or value.isascii():
        return value
    try:
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:
        check_record_text(place, value)


def check_record_text(place: str, text: Any, longest: int | None = None) -> None:
    """Raises InputError if a value is not a text, is not valid Unicode, or is too long."""
    if not isinstance(text, str):
        raise InputError(f"{place} has {kind_of(text)} for a text. Fix the row.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        if 0xDC80 <= code <= 0xDCFF:
            raise InputError(
                f"{place} is not UTF-8 text (a byte is 0x{code - 0xDC00:02x}). Save it as UTF-8."
            ) from None
        raise InputError(
            f"the text in {place} has half a surrogate pair (\\u{code:04x}), which is no "
            "character. Remove it."
        ) from None
    if longest is not None and len(text) > longest:
        length = f"{place} has {len(text):,} characters"
        raise InputError(f"{length}. The limit is {longest:,}. Split the text.")


@contextlib.contextmanager
def _opened(file: str, path: Path, newline: str) -> Iterator[io.TextIOWrapper]:
    packing = path.suffix.lower()
    stream = sys.stdin.buffer if file == STANDARD_INPUT else PACKED.get(packing, open)(path, "rb")
    text = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline)
    try:
        yield text
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if packing not in PACKED:
            raise
        raise InputError(
            f"{file} cannot be unpacked ({one_line(error)[:200]}). Copy it again, or rename it."
        ) from error
    finally:
        text.detach()
        if file != STANDARD_INPUT:
            stream.close()


def _plain(lines: Iterator[str], name: str, choice: Choice) -> Iterator[Values]:
    if choice.id_column is not None:
        raise InputError(
            f"{name} is read as plain lines, and `id_column` is given. Name the field of the texts "
            "with `column`, or leave it out.",
            "id_column column",
        )
    for number, line in enumerate(lines, 1):
        yield f"line {number} of {name}", [line.removesuffix("\n").removesuffix("\r")]


def _json_lines(lines: Iterator[str], name: str, choice: Choice) -> Iterator[Values]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"line {number} of {name}"
        try:
            yield place, _fields(parse_json(line, place, _expected(choice), object), place, choice)
        except ValueError as error:
            yield place, error


def _json_list(lines: Iterator[str], name: str, choice: Choice) -> Iterator[Values]:
    expected = "one object per line, or one list of objects"
    for index, item in enumerate(parse_json("".join(lines), name, expected, list)):
        place = f"record {index} of {name}"
        try:
            yield place, _fields(item, place, choice)
        except ValueError as error:
            yield place, error


def _expected(choice: Choice) -> str:
    return f"an object with {', '.join(map(repr, choice.names_or('text')))}"


def _fields(record: Any, place: str, choice: Choice) -> list[Any]:
    """The chosen fields of a JSON object."""
    if not isinstance(record, dict):
        raise InputError(f"{place} holds {kind_of(record)}. Give {_expected(choice)}.")
    names = choice.names_or("text")
    if absent := [name for name in names if name not in record and not choice.optional]:
        raise no_column(place, absent[0], list(record))
    return [record.get(name) for name in names]


_READERS: dict[str, Callable[[Iterator[str], str, Choice], Iterator[Values]]] = {
    "lines": _plain,
    "csv": csv_records,
    "tsv": tsv_records,
    "json": _json_lines,
    "json list": _json_list,
    "conll": conll_records,
}
