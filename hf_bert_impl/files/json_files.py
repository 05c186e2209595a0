"""Reading and writing JSON."""

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_bert_impl.errors import InputError, kind_of
from hf_bert_impl.files.atomic import atomic_file
from hf_bert_impl.files.text import check_text_file


def read_json(
    path: str | os.PathLike[str],
    expected: str = "a JSON object",
    kind: type | tuple[type, ...] = dict,
    remedy: str = "restore the file",
) -> Any:
    """Reads a JSON file.

    Args:
        path: The file, in UTF-8.
        expected: The content in words, for messages.
        kind: The type of its content, or several.
        remedy: The remedy for invalid content, for messages.

    Returns:
        Its content.

    Raises:
        ValueError: The file is missing or a folder, or its content is invalid.
        OSError: It cannot be read.
    """
    check_text_file(Path(path), expected)
    return parse_json(Path(path).read_bytes(), os.fspath(path), expected, kind, remedy)


def parse_json(
    content: bytes | str,
    where: str,
    expected: str = "a JSON object",
    kind: type | tuple[type, ...] = dict,
    remedy: str = "restore the file",
) -> Any:
    """Reads JSON.

    Args:
        content: The text, or its bytes in UTF-8 (a byte-order mark is passed over).
        where: The source, for messages, as in "line 7 of train.jsonl".
        expected: As in `read_json`.
        kind: As in `read_json`.
        remedy: As in `read_json`.

    Returns:
        The value.

    Raises:
        ValueError: It is empty, not UTF-8, not JSON, nested too deeply, or of another type.
    """
    problem = None
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        if not text.strip():
            problem = "is empty"
        else:
            value = json.loads(text)
            if not isinstance(value, kind):
                problem = f"holds {kind_of(value)}"
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 ({error.reason})"
    except RecursionError:
        problem = "is JSON that is nested too deeply"
    except ValueError as error:
        problem = f"is not JSON ({' '.join(str(error).split())})"
    if problem is not None:
        raise InputError(f"{where} {problem}. It should be {expected}: {remedy}.")
    return value


def check_text(value: Any, where: str) -> None:
    r"""Checks that the texts of a JSON value can be encoded.

    JSON can contain half of a surrogate pair, as in "\ud83d", which has no UTF-8 form.

    Args:
        value: A text, or a structure with texts, keys included.
        where: Its source, for messages.

    Raises:
        ValueError: It has half a pair.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where} has half a surrogate pair (\\u{ord(error.object[error.start]):04x}), "
            "which is no character. Remove it."
        ) from error


def to_json(value: Any, indent: int | None = None) -> str:
    """A value as JSON.

    Args:
        value: JSON's types, dataclasses, objects with `to_dict`, and paths in any of them. Infinite
            and undefined numbers, which JSON does not have, become null.
        indent: As of `json.dumps`; None writes one line.
    """
    return json.dumps(plain(value), indent=indent, ensure_ascii=False)


def write_json(path: Path, value: Any) -> None:
    """Writes a value as `to_json` gives it, indented; the file is replaced atomically."""
    with atomic_file(path) as fresh:
        fresh.write_text(to_json(value, indent=2) + "\n", encoding="utf-8")


def plain(value: Any) -> Any:
    """A value of JSON's types, as `to_json` writes it."""
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
