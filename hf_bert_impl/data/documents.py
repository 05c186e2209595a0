"""Documents out of text files: lists of sentences, in the order in which they were written.

What a line is differs from corpus to corpus, so a layout says it (`LAYOUTS`). Records are documents
whatever the layout: a row of a table (.csv, .tsv, .parquet, a folder of `datasets`), an object of
.jsonl or .json, a row of any other file where a column is named, a file of a folder. The tag
`<br />`, which ends a line in texts out of the web, does so here.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hf_bert_impl.data.sentence_splitter import split_sentences
from hf_bert_impl.data.text_folder import text_files
from hf_bert_impl.data.text_input import RecordInput, check_record_text, form_of
from hf_bert_impl.errors import InputError, check_choice
from hf_bert_impl.files.text import check_text_file, read_text

#: How lines make documents.
LAYOUTS = {
    "sentences": "a sentence a line, a blank line between documents (Google's own format)",
    "paragraphs": "prose, a blank line between documents; sentences are found",
    "lines": "a document a line; sentences are found",
    "files": "a document a file; sentences are found",
    "wikitext": "articles under a line `= Title =`; sentences are found, headings left out",
    "pairs": "two sentences a line with a tab between them (codertimo's format)",
}

#: The sentences of a document, none of them empty.
Document = list[str]

_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)


def read_documents(
    files: Iterable[str | Path], layout: str = "sentences", column: str | None = None
) -> Iterator[Document]:
    """The documents of text files, one at a time.

    Args:
        files: UTF-8 text, tables or folders, as `RecordInput` and `text_files` read them.
        layout: One of `LAYOUTS`, for files of plain text.
        column: As in `RecordInput`.

    Yields:
        Documents, none of them empty. A document ends with its file.

    Raises:
        ValueError: There is no such layout, or a line cannot be read.
        FileNotFoundError: There is no such file.
    """
    check_choice("layout", layout, LAYOUTS)
    for file in files:
        texts = read_texts(file, column)
        is_records = column is not None or has_records(file)
        if layout == "pairs" and is_records:
            raise InputError(
                f"{file} has records, which are documents and no pairs",
                "plain text with two sentences a line for `layout='pairs'`",
                "leave the layout out, or write the pairs into a .txt file",
            )
        if is_records:
            documents: Iterable[Document] = map(_sentences, texts)
        elif layout == "sentences":
            documents = _between_blank_lines(without_breaks(line).strip() for line in texts)
        elif layout == "paragraphs":
            documents = map(_joined, _between_blank_lines(texts))
        elif layout == "lines":
            documents = map(_sentences, texts)
        elif layout == "files":
            documents = [_joined(texts)]
        elif layout == "pairs":
            documents = _pairs(texts, file)
        else:
            documents = map(_joined, _articles(texts))
        yield from filter(None, documents)


def read_texts(file: str | Path, column: str | None = None) -> Iterator[str]:
    """The lines of a plain text file, the texts of a table, or the files of a folder as they stand.

    Args:
        file: A file, or a folder with files of text or of `datasets`.
        column: As in `RecordInput`.

    Raises:
        ValueError: Something is not UTF-8, a record has no text in the column, or there is none.
        FileNotFoundError: There is no such file.
    """
    folder = text_files(file)
    if folder:
        yield from map(read_text, folder)
        return
    is_empty = True
    with RecordInput(str(file), column, mend=True) as source:
        for place, text, _ in source.sound():
            check_record_text(place, text)
            is_empty = False
            yield text
    if is_empty:
        raise InputError(f"{source.name} is empty", "text", "leave it out, or fill it")


def has_records(file: str | Path) -> bool:
    """Whether what is read from a file or folder are records, and not lines."""
    return form_of(file) != "lines"


def without_breaks(text: str) -> str:
    """A text with spaces in place of the tag `<br />`."""
    return _BREAK.sub(" ", text) if "<" in text else text


def check_files(files: Iterable[str | Path], column: str | None = None) -> None:
    """Check that files are there and that their first texts can be read.

    Args:
        files: Files and folders.
        column: As in `RecordInput`.

    Raises:
        ValueError: One is empty, a folder without texts or a table without the column, or its first
            text cannot be read; or none is named.
        FileNotFoundError: There is no such file.
    """
    paths = [Path(file) for file in files]
    if not paths:
        raise InputError("no files are named", "at least one text file", "name one")
    for path in paths:
        if not path.is_dir():
            check_text_file(path, "a text file, a folder with .txt files, or one of datasets")
        next(read_texts(path, column))


def no_text(files: Sequence[str | Path]) -> InputError:
    """What to raise where files hold nothing to train on."""
    return InputError(
        f"{files[0]} holds no text that the tokenizer knows", "documents", "check the file"
    )


def content_digest(files: Iterable[str | Path]) -> str:
    """A digest of what files hold, which their names and times do not change."""
    digest = hashlib.blake2b(digest_size=16)
    for file in map(Path, files):
        inside = text_files(file) or sorted(it for it in file.rglob("*") if it.is_file()) or [file]
        for part in inside:
            with part.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "blake2b").digest())
        # The same bytes make other texts under another ending.
        digest.update(os.fsencode("".join(file.suffixes[-2:])) if has_records(file) else b"text")
    return digest.hexdigest()


def _between_blank_lines(lines: Iterable[str]) -> Iterator[list[str]]:
    block: list[str] = []
    for line in lines:
        if line.strip():
            block.append(line)
        elif block:
            yield block
            block = []
    if block:
        yield block


def _articles(lines: Iterable[str]) -> Iterator[list[str]]:
    article: list[str] = []
    before = ""
    for line in map(str.strip, lines):
        is_heading = line.startswith("= ") and line.endswith(" =") and len(line) > 4
        # `= = Section = =` is a heading inside the article. A title follows a blank line; a line of
        # text that begins with an equals sign (a formula) follows other text.
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
                f"line {number} of {file} is {line.strip()[:60]!r}",
                "two sentences with a tab between them",
                "mend the line, or name the layout that the file has",
            )


def _sentences(text: str) -> Document:
    pieces = _BREAK.split(text) if "<" in text else [text]
    return [sentence for piece in pieces for sentence in split_sentences(piece)]


def _joined(lines: Iterable[str]) -> Document:
    return [sentence for line in lines for sentence in _sentences(line)]
