"""The one place that reads JSON: whatever is wrong with it becomes one line.

`path` and `options` are the first argument and the keyword arguments of `from_pretrained`.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from transformers.utils import CONFIG_NAME, cached_file

#: The arguments of `from_pretrained` that `cached_file` takes.
_PLACE = ("cache_dir", "revision", "subfolder")


def read_json(
    path: str | os.PathLike[str],
    expected: str = "a JSON object",
    kind: type | tuple[type, ...] = dict,
    remedy: str = "restore the file",
) -> Any:
    """Reads a JSON file.

    Args:
        path: The file, in UTF-8.
        expected: What it should be, for messages.
        kind: The type of its content, or several.
        remedy: What to do about a wrong one, for messages.

    Returns:
        Its content.

    Raises:
        ValueError: There is no such file, or a folder, or `parse_json` refuses its content.
        OSError: It cannot be read.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        raise ValueError(f"{path} is a folder; expected {expected}; name a file")
    if not os.path.exists(path):
        raise ValueError(f"there is no file {path}; expected {expected}; check the path")
    with open(path, "rb") as file:
        content = file.read()
    return parse_json(content, path, expected, kind, remedy)


def parse_json(
    content: bytes | str,
    where: str,
    expected: str = "a JSON object",
    kind: type | tuple[type, ...] = dict,
    remedy: str = "mend it",
) -> Any:
    """Reads JSON.

    Args:
        content: The text, or its bytes in UTF-8 (a byte-order mark is passed over).
        where: What it is, for messages: a path, "line 7 of train.jsonl".
        expected: As in `read_json`.
        kind: As in `read_json`.
        remedy: As in `read_json`.

    Returns:
        The value.

    Raises:
        ValueError: It is empty, not UTF-8, not JSON, nested too deeply for Python to read, or of
            another type.
    """
    problem = None
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
        if not text.strip():
            problem = "is empty"
        else:
            value = json.loads(text)
            if not isinstance(value, kind):
                problem = f"holds {'null' if value is None else f'a {type(value).__name__}'}"
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 ({error.reason})"
    except RecursionError:
        problem = "is JSON that is nested too deeply"
    except ValueError as error:
        problem = f"is not JSON ({' '.join(str(error).split())})"
    if problem is not None:
        raise ValueError(f"{where} {problem}; expected {expected}; {remedy}")
    return value


def check_text(value: Any, where: str) -> None:
    r"""Checks that the texts of a JSON value can be encoded.

    JSON can spell half of a surrogate pair, as in "\ud83d". No character is that half, so neither
    a tokenizer takes it nor can it be written.

    Args:
        value: A text, or anything with texts in it; keys count.
        where: What it is, for messages.

    Raises:
        ValueError: Half a pair is in it.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where} has half a surrogate pair (\\u{ord(error.object[error.start]):04x}); "
            "expected whole characters; mend it"
        ) from error


@contextlib.contextmanager
def explained(check: Callable[..., None], path: Any, options: Mapping[str, Any]) -> Iterator[None]:
    """Looks for damaged files if loading fails, and raises what is wrong with them instead.

    A damaged file can raise anything in transformers (RecursionError, KeyError, Exception). Files
    are read a second time only after a failure.

    Args:
        check: Raises an error that says what is wrong: `check_tokenizer`, `check_model`.

    Raises:
        ValueError, OSError: By the check, or the path does not exist. If nothing is found, what was
            raised inside.
    """
    try:
        yield
    except Exception as error:
        try:
            check_exists(path)
            check(path, options)
        except (ValueError, OSError) as found:
            raise found from error
        raise


def is_path(name: str) -> bool:
    """Whether this cannot be an id of the hub, which has one slash at most, between two names."""
    begins_so = os.path.isabs(name) or name.startswith((".", "~"))
    return begins_so or name.endswith("/") or name.count("/") > 1


def check_exists(path: Any) -> None:
    """Raises OSError if something that cannot be a name on the hub does not exist here."""
    path = os.fspath(path)
    if is_path(path) and not os.path.exists(path):
        raise OSError(
            f"{path} does not exist; give the folder of a checkpoint, or the name of one on the hub"
        )


def check_config_file(path: Any, options: Mapping[str, Any]) -> None:
    """Raises ValueError if the config of a checkpoint is no JSON object."""
    file = find_file(path, CONFIG_NAME, options)
    if file is not None:
        read_json(file)


def find_file(path: Any, name: str, options: Mapping[str, Any]) -> str | None:
    """The file of this name of a checkpoint, in a folder or in the hub's cache, or None.

    For a config, `path` may be the file itself.
    """
    path = os.fspath(path)
    if os.path.isfile(path):
        return path if name == CONFIG_NAME else None
    if os.path.isdir(path):
        file = os.path.join(path, options.get("subfolder") or "", name)
        return file if os.path.exists(file) else None
    place = {key: options[key] for key in _PLACE if options.get(key) is not None}
    try:
        found: str | None = cached_file(
            path, name, local_files_only=True, _raise_exceptions_for_missing_entries=False, **place
        )
    except (OSError, ValueError):  # no such repository, or nothing of it here
        return None
    return found
