"""Documents of text files: lists of sentences in reading order.

A layout (`LAYOUTS`) says what a line of plain text is. Records are documents in any layout: a row
of a table, an object of JSON, a file of a folder. The tag `<br />` ends a line, as in texts from
the web.
"""

import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hf_bert_impl.data.sentence_splitter import split_sentences
from hf_bert_impl.data.text_folder import read_lenient, text_files
from hf_bert_impl.data.text_input import Row, check_record_text, form_of, read_records, sound
from hf_bert_impl.errors import InputError, check_choice
from hf_bert_impl.files.text import check_text_file

#: How lines make documents.
LAYOUTS = {
    "sentences": "one sentence per line, a blank line between documents (Google's own format)",
    "paragraphs": "prose, a blank line between documents; sentences are split by rules",
    "lines": "one document per line; sentences are split by rules",
    "files": "one document per file; sentences are split by rules",
    "wikitext": "articles under a line `= Title =`, split into sentences without headings",
    "pairs": "two sentences per line with a tab between them (codertimo's format)",
}

#: The sentences of a document, none of them empty.
Document = list[str]

_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)


def read_documents(
    files: Iterable[str | Path], layout: str = "sentences", column: str | None = None
) -> Iterator[Document]:
    """The documents of text files, one at a time; none is empty, and each ends with its file.

    Args:
        files: UTF-8 text, tables or folders, as `read_records` and `text_files` read them.
        layout: One of `LAYOUTS`, for plain text.
        column: `columns` of `read_records`.

    Raises:
        ValueError: The layout is unknown, or a file is missing or cannot be read.
    """
    check_choice("layout", layout, LAYOUTS)
    for file in files:
        texts = read_texts(file, column)
        is_records = column is not None or has_records(file)
        if layout == "pairs" and is_records:
            raise InputError(
                f"{file} has records, which are documents and no pairs. Leave the layout out, or "
                "write the pairs into a .txt file."
            )
        if is_records or layout == "lines":
            documents: Iterable[Document] = map(_sentences, texts)
        elif layout == "sentences":
            documents = _between_blank_lines(without_breaks(line).strip() for line in texts)
        elif layout == "paragraphs":
            documents = map(_joined, _between_blank_lines(texts))
        elif layout == "files":
            documents = [_joined(texts)]
        elif layout == "pairs":
            documents = _pairs(texts, file)
        else:
            documents = map(_joined, _articles(texts))
        yield from filter(None, documents)


def read_texts(file: str | Path, column: str | None = None) -> Iterator[str]:
    """The lines of plain text, the texts of a table, or the files of a folder.

    Args:
        file: A file, or a folder of texts or of `datasets`.
        column: `columns` of `read_records`.

    Raises:
        ValueError: The file is missing, empty or not UTF-8, or a record has no text in the column.
    """
    inside = text_files(file)
    rows = (
        (Row(str(text), [read_lenient(text)]) for text in inside)
        if inside
        else read_records(file, column)
    )
    is_empty = True
    for row in sound(rows, file):
        check_record_text(row.place, row.values[0])
        is_empty = False
        yield row.values[0]
    if is_empty:
        raise InputError(f"{file} is empty. Leave it out, or fill it.")


def clean_texts(files: Sequence[str | Path], column: str | None = None) -> Iterator[str]:
    """The texts of all files, as `read_texts` reads them, without `<br />` tags."""
    for file in files:
        yield from map(without_breaks, read_texts(file, column))


def has_records(file: str | Path) -> bool:
    """Whether a file or folder consists of records rather than lines."""
    return form_of(file) != "lines"


def without_breaks(text: str) -> str:
    """A text with spaces instead of `<br />` tags."""
    return _BREAK.sub(" ", text) if "<" in text else text


def check_files(files: Iterable[str | Path], column: str | None = None) -> None:
    """Checks that files exist and that their first texts can be read.

    Raises:
        ValueError: A file is missing or empty, or its first text cannot be read; or none is named.
    """
    paths = [Path(file) for file in files]
    if not paths:
        raise InputError("no files are named. Name at least one text file.")
    for path in paths:
        if not path.is_dir():
            check_text_file(path, "a text file, a folder with .txt files, or one of datasets")
        next(read_texts(path, column))


def no_text(files: Sequence[str | Path]) -> InputError:
    """The error for files without text to train on."""
    return InputError(
        f"{files[0]} holds no text that the tokenizer knows. Check the file and its encoding."
    )


def content_digest(files: Iterable[str | Path]) -> str:
    """A digest of the files' content, whatever their names and times."""
    digest = hashlib.blake2b(digest_size=16)
    for file in map(Path, files):
        inside = text_files(file) or sorted(filter(Path.is_file, file.rglob("*"))) or [file]
        for part in inside:
            with part.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "blake2b").digest())
        # The same bytes are other texts under another ending.
        digest.update(os.fsencode("".join(file.suffixes[-2:])) if has_records(file) else b"text")
    return digest.hexdigest()


def _between_blank_lines(lines: Iterable[str]) -> Iterator[list[str]]:
    for has_text, block in itertools.groupby(lines, lambda line: bool(line.strip())):
        if has_text:
            yield list(block)


def _articles(lines: Iterable[str]) -> Iterator[list[str]]:
    article: list[str] = []
    before = ""
    for line in map(str.strip, lines):
        is_heading = line.startswith("= ") and line.endswith(" =") and len(line) > 4
        # `= = Section = =` is a heading inside the article. A title follows a blank line; a formula
        # that begins with an equals sign follows text.
        is_section = line.startswith("= = ")
        if is_heading and not is_section and not before:
            if article:
                yield article
            article = []
        elif line and not is_heading:
            article.append(line)
        before = line
    if article:
        yield article


def _pairs(lines: Iterable[str], file: str | Path) -> Iterator[Document]:
    for number, line in enumerate(lines, 1):
        pair = [without_breaks(sentence).strip() for sentence in line.split("\t")]
        if len(pair) == 2 and all(pair):
            yield pair
        elif line.strip():
            raise InputError(
                f"line {number} of {file} is {line.strip()[:60]!r}. Write two sentences with a tab "
                "between them, or name another layout."
            )


def _sentences(text: str) -> Document:
    pieces = _BREAK.split(text) if "<" in text else [text]
    return [sentence for piece in pieces for sentence in split_sentences(piece)]


def _joined(lines: Iterable[str]) -> Document:
    return [sentence for line in lines for sentence in _sentences(line)]
