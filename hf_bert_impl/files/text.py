"""Reading UTF-8 text; a byte-order mark at the beginning is skipped."""

from __future__ import annotations

from pathlib import Path

from hf_bert_impl.errors import InputError, MissingFile


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


def decode(content: bytes, name: str) -> str:
    """Decodes UTF-8.

    Args:
        content: The bytes.
        name: Their file, for the message.

    Raises:
        InputError: They are not UTF-8; the message names the line and the byte.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = 1 + content.count(b"\n", 0, error.start)
        place = error.start - content.rfind(b"\n", 0, error.start)
        raise InputError(
            f"Line {line} of {name} is not UTF-8 text (byte {place} of the line is "
            f"0x{content[error.start]:02x}: {error.reason}). Save the file as UTF-8."
        ) from error
    return text.removeprefix("\ufeff")
