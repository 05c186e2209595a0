"""Reading UTF-8 text; a byte-order mark at the beginning is skipped."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from hf_bert_impl.errors import InputError, InputNote, MissingFile


def check_text_file(path: Path, expected: str) -> None:
    """Checks that a file exists; `expected` describes it in messages.

    Raises:
        InputError: It is a folder.
        MissingFile: It does not exist.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder. It should be {expected}.")
    if not path.exists():
        raise MissingFile(f"There is no file {path}. It should be {expected}.")


def mended_lines(lines: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Replaces invalid UTF-8 bytes by U+FFFD, which BERT's tokenizers skip.

    Texts from the web, such as the IMDB reviews, have a few such bytes. A warning at the end counts
    the lines. If more than 1% of the lines so far are invalid, they are not changed, so that
    `decode` raises an error about the encoding.

    Args:
        lines: The lines of a binary stream, from its beginning.
        name: The name of the stream, for the warning.
    """
    mended = 0
    for number, line in enumerate(lines, start=1):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
            if (mended + 1) * 100 <= number:
                mended += 1
                line = line.decode("utf-8", "replace").encode("utf-8")
        yield line
    if mended:
        note = f"{mended} line(s) of {name} have bytes that are not UTF-8"
        warnings.warn(note, InputNote, stacklevel=2)


def read_text(path: str | Path) -> str:
    """Reads a whole file without changing its line ends.

    Raises:
        InputError: It is not UTF-8.
        OSError: It cannot be read.
    """
    return decode(Path(path).read_bytes(), str(path))


def escaped(text: str | bytes) -> str:
    r"""A text with invalid characters escaped, as in \xc9 or \ud83d."""
    content = text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")
    return content.decode("utf-8", "backslashreplace")


def decode(content: bytes, name: str, first_line: int = 1) -> str:
    """Decodes UTF-8.

    Args:
        content: The bytes.
        name: Their file, for the message.
        first_line: The number of their first line in the file.

    Raises:
        InputError: They are not UTF-8; the message names the line and the byte.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + content.count(b"\n", 0, error.start)
        place = error.start - content.rfind(b"\n", 0, error.start)
        raise InputError(
            f"Line {line} of {name} is not UTF-8 text (byte {place} of the line is "
            f"0x{content[error.start]:02x}: {error.reason}). Save the file as UTF-8."
        ) from error
    return text.removeprefix("\ufeff") if first_line == 1 else text
