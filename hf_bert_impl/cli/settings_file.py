"""The YAML file of `--config`: options by the names of their fields."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.files.text import check_text_file, read_text


def read_settings(file: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the options of a command from a file.

    Args:
        file: Its path.
        kinds: The type of each option.

    Returns:
        The options that it has.

    Raises:
        InputError: It is no YAML mapping, or it has an unknown key or a value of another type.
    """
    import yaml

    check_text_file(Path(file).expanduser(), "a YAML file of options")
    known = f"Keys: {', '.join(kinds)}."
    try:
        read = yaml.safe_load(read_text(Path(file).expanduser()))
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{file} is not YAML ({one_line(error)}). {known}") from error
    if not isinstance(read, dict):
        raise InputError(f"{file} holds {_name(type(read))}. Give lines of KEY: VALUE. {known}")
    for key, value in read.items():
        if key not in kinds:
            raise InputError(f"{file} has the unknown key {key!r}. {known}")
        try:
            read[key] = _converted(value, kinds[key])
        except (TypeError, ValueError):
            raise InputError(
                f"{file} has {key}: {value!r}. Give {_name(kinds[key])}. {known}"
            ) from None
    return read


def _converted(value: Any, kind: Any) -> Any:
    """A value of YAML as a field's type; ValueError or TypeError if it is of another."""
    inner = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return None if value is None else _converted(value, inner[0])
    if typing.get_origin(kind) is tuple:
        items = value if isinstance(value, list) else [value]
        return tuple(_converted(item, inner[0]) for item in items)
    if inner:
        kind = dict
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is float and not isinstance(value, bool):
        return float(value)  # YAML 1.1 reads 1e-4 as a text
    if type(value) is not kind:
        raise TypeError
    return value


def _name(kind: Any) -> str:
    """A type in the words of a YAML file."""
    words = {bool: "true or false", int: "a whole number", float: "a number", dict: "a mapping"}
    words |= {str: "a text", list: "a list", types.NoneType: "nothing", Path: "a path"}
    if isinstance(kind, types.UnionType):
        return " or ".join(_name(part) for part in typing.get_args(kind))
    inner = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return f"a list, each {_name(inner[0])}"
    return words.get(dict if inner else kind, "a value")
