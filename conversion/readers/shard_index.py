"""The list of a checkpoint in several files: `pytorch_model.bin.index.json` and its kin.

Such an index is `{"metadata": {…}, "weight_map": {tensor: file name}}`, whatever the format of the
files. It comes with the checkpoint, so that nothing in it is believed: a name of a file is a plain
name, and what it names lies beside the index.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConversionError

#: Bytes of an index: the largest models have some 10 000 tensors and an index below 2 MiB.
MAX_INDEX_BYTES = 64 << 20

_REMEDY = "download the whole checkpoint again"


@dataclass(frozen=True)
class ShardIndex:
    """A checked index; every file that it names is there."""

    weight_map: dict[str, str]
    """The file of each tensor, a plain name in the folder of the index."""
    files: tuple[Path, ...]
    """The files, each once, by name."""
    metadata: dict[str, Any]
    """The `metadata` table, {} where there is none. Nothing in it is checked."""


def read_shard_index(index: Path) -> ShardIndex:
    """Read and check a `*.index.json`.

    A link to a file elsewhere is refused, but for the hub's cache, which keeps the index itself
    beside the files that its links lead to.

    Args:
        index: The JSON file.

    Returns:
        The tensors' files.

    Raises:
        ConversionError: The file cannot be read, is no JSON, has a key twice, is no such table,
            or names a file that is missing or not in its folder.
    """
    table = _load(index)
    weight_map = table.get("weight_map") if isinstance(table, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConversionError(
            f"{index} has no weight_map table",
            'a shard index {"metadata": {…}, "weight_map": {tensor: file}}',
            _REMEDY,
        )
    metadata = table.get("metadata", {})
    if not isinstance(metadata, dict):
        raise ConversionError(
            f"metadata of {index} is {type(metadata).__name__}", "a table", _REMEDY
        )
    for tensor, name in weight_map.items():
        if not isinstance(name, str):
            raise ConversionError(
                f"{index} maps {tensor!r:.200} to {name!r:.200}", "the name of a file", _REMEDY
            )
    names = sorted(set(weight_map.values()))
    return ShardIndex(weight_map, tuple(_shard(index, name) for name in names), metadata)


def _load(index: Path) -> Any:
    try:
        with index.open("rb") as file:
            text = file.read(MAX_INDEX_BYTES + 1)
    except OSError as error:
        raise ConversionError(
            f"{index} cannot be read ({error.strerror})", "a shard index", "check the path"
        ) from None
    if len(text) > MAX_INDEX_BYTES:
        raise ConversionError(
            f"{index} has more than {MAX_INDEX_BYTES} bytes", "a shard index", _REMEDY
        )
    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except _DuplicateKeyError as error:
        raise ConversionError(
            f"{index} has {error.args[0]!r:.200} twice", "every key once", _REMEDY
        ) from None
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, or nested without end
        raise ConversionError(f"{index} is no JSON ({error})", "a shard index", _REMEDY) from None


class _DuplicateKeyError(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKeyError(key)
            seen.add(key)
    return table


def _shard(index: Path, name: str) -> Path:
    if name in ("", ".", "..") or set(name) & set('/\\:\0"<>|?*\n\r'):
        raise ConversionError(
            f"{index} names the file {name!r:.200}",
            "the plain name of a file beside the index",
            "do not use this checkpoint, or mend its index",
        )
    path = index.parent / name
    try:
        found = path.is_file()
        # In the hub's cache snapshots/<revision>/* are links to blobs/*, the index among them.
        homes = {index.parent.resolve(), index.resolve().parent}
        inside = found and path.resolve().parent in homes
    except (OSError, RuntimeError):  # a name too long, or links in a circle
        found = inside = False
    if not found:
        raise ConversionError(
            f"{index} names {name!r:.200}, which is not there", "every shard beside it", _REMEDY
        )
    if not inside:
        raise ConversionError(
            f"{path} is a link to another folder",
            "every shard beside its index",
            "put the file itself in its place",
        )
    return path
