"""Documents out of text files: lists of sentences, in the order in which they were written.

What a line is differs from corpus to corpus, so a layout says it (`LAYOUTS`). A `.jsonl` file holds
one document a line in the field `text`, whatever the layout.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hf_bert_impl.data.sentence_splitter import split_sentences
from hf_bert_impl.errors import InputError, check_choice
from hf_bert_impl.files.text import JSON_LINES, check_text_file, numbered_lines
from hf_bert_impl.model.json_files import check_text, parse_json

#: How lines make documents.
LAYOUTS = {
    "sentences": "a sentence a line, a blank line between documents (Google's own format)",
    "paragraphs": "prose, a blank line between documents; sentences are found",
    "lines": "a document a line; sentences are found",
    "files": "a document a file; sentences are found",
    "wikitext": "articles under a line `= Title =`; sentences are found, headings left out",
}

#: The sentences of a document, none of them empty.
Document = list[str]


def read_documents(files: Iterable[str | Path], layout: str = "sentences") -> Iterator[Document]:
    """The documents of text files, one at a time.

    Args:
        files: UTF-8 text, or JSON lines with a field `text`.
        layout: One of `LAYOUTS`.

    Yields:
        Documents, none of them empty. A document ends with its file.

    Raises:
        ValueError: There is no such layout, or a line cannot be read.
        FileNotFoundError: There is no such file.
    """
    check_choice("layout", layout, LAYOUTS)
    for file in files:
        lines = read_lines(file)
        if is_json_lines(file):
            documents: Iterable[Document] = (split_sentences(text) for text in lines)
        elif layout == "sentences":
            documents = _between_blank_lines(line.strip() for line in lines)
        elif layout == "paragraphs":
            documents = map(_sentences, _between_blank_lines(lines))
        elif layout == "lines":
            documents = map(split_sentences, lines)
        elif layout == "files":
            documents = [_sentences(lines)]
        else:
            documents = map(_sentences, _articles(lines))
        yield from filter(None, documents)


def read_lines(file: str | Path) -> Iterator[str]:
    """The lines of a text file, or the texts of a file of JSON lines.

    Raises:
        ValueError: A line is not UTF-8, or is no JSON object with a `text`.
        FileNotFoundError: There is no such file.
    """
    for number, line in numbered_lines(file):
        if not is_json_lines(file):
            yield line
        elif line.strip():
            yield text_field(line, f"line {number} of {file}")


def text_field(line: str, where: str, name: str = "text", remedy: str = "mend the line") -> str:
    """The text in a field of a JSON line.

    Args:
        line: The line.
        where: What it is, for messages: "line 7 of train.jsonl".
        name: The field.
        remedy: What to do where there is no such field, for the message.

    Raises:
        ValueError: It is no JSON object with a text in that field.
    """
    expected = f"an object whose {name!r} is a text"
    record = parse_json(line, where, expected)
    if name not in record:
        fields = ", ".join(map(repr, record)) or "no fields"
        raise InputError(f"{where} has no {name!r}, only {fields}", expected, remedy)
    text = record[name]
    if not isinstance(text, str):
        raise InputError(
            f"{where} has a {type(text).__name__} as {name!r}", expected, "mend the line"
        )
    check_text(text, f"{name!r} in {where}")
    return text


def check_files(files: Iterable[str | Path]) -> None:
    """Check that files are there and hold something, before any of them is read.

    Raises:
        ValueError: One is a folder or empty, or none is named.
        FileNotFoundError: There is no such file.
    """
    paths = [Path(file) for file in files]
    if not paths:
        raise InputError("no files are named", "at least one text file", "name one")
    for path in paths:
        check_text_file(path, "a text file")
        if path.stat().st_size == 0:
            raise InputError(f"{path} is empty", "text", "leave it out, or fill it")


def no_text(files: Sequence[str | Path]) -> InputError:
    """What to raise where files hold nothing to train on."""
    return InputError(
        f"{files[0]} holds no text that the tokenizer knows", "documents", "check the file"
    )


def content_digest(files: Iterable[str | Path]) -> str:
    """A digest of what files hold, which their names and times do not change."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        with Path(file).open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "blake2b").digest())
        digest.update(b"jsonl" if is_json_lines(file) else b"text")
    return digest.hexdigest()


def is_json_lines(file: str | Path) -> bool:
    """Whether a file's name says that it holds JSON lines."""
    return Path(file).suffix in JSON_LINES


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


def _sentences(lines: Iterable[str]) -> Document:
    return [sentence for line in lines for sentence in split_sentences(line)]
