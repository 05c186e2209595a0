"""UTF-8 text out of files and streams: one reader, and one message for any other encoding.

A byte-order mark at the beginning is passed over.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from hf_bert_impl.errors import InputError, InputNote, MissingFile


def check_text_file(path: Path, expected: str) -> None:
    """Checks that a file is there.

    Args:
        path: The file.
        expected: What it should be, for the message.

    Raises:
        InputError: It is a folder.
        MissingFile: There is no such file.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder. It should be {expected}.")
    if not path.exists():
        raise MissingFile(f"There is no file {path}. It should be {expected}.")


def mended_lines(lines: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Lines with U+FFFD, which BERT's tokenizers pass over, in place of bytes that are not UTF-8.

    Collections out of the web have a few such bytes, as the published IMDB reviews do. A warning at
    the end counts the lines. More than one line in a hundred so far is another encoding, and stays
    as it is for `decode` to refuse.

    Args:
        lines: Of a binary stream, from its beginning.
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
    """A whole file, its line ends as they are.

    Raises:
        InputError: It is not UTF-8.
        OSError: It cannot be read.
    """
    return decode(Path(path).read_bytes(), str(path))


def escaped(text: str | bytes) -> str:
    r"""A text that can be written: what is no character is spelled out, as in \xc9 or \ud83d."""
    content = text if isinstance(text, bytes) else text.encode("utf-8", "backslashreplace")
    return content.decode("utf-8", "backslashreplace")


def decode(content: bytes, name: str, first_line: int = 1) -> str:
    """The text that UTF-8 bytes spell.

    Args:
        content: The bytes.
        name: The file that they come from, for the message.
        first_line: The number of their first line in it.

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
