"""Checkpoints in several files, listed by `pytorch_model.bin.index.json` and similar files.

Such an index is `{"metadata": {…}, "weight_map": {tensor: file name}}` in every format. It is not
trusted: a file name must be plain, and name a file in the index's own folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .mapped import read_at, reading

#: Bytes of an index: the largest models have some 10 000 tensors and an index below 2 MiB.
_MAX_INDEX_BYTES = 64 << 20
#: Maximum number of names in an error.
_SHOWN = 5


def read_shard_index(index: Path) -> dict[str, Path]:
    """Read and check a `*.index.json`: the existing file of each tensor.

    A link to a file elsewhere is refused, except in the hub's cache, whose links lead to the folder
    with the index itself.

    Raises:
        InputError: The file cannot be read, is no JSON, has a duplicate key, is no such table,
            or names a file that is missing or not in its folder.
    """
    with reading("shard index", index):
        table = load_json(read_at(index, 0, _MAX_INDEX_BYTES))
        weight_map = table.get("weight_map") if isinstance(table, dict) else None
        if not isinstance(weight_map, dict) or not weight_map:
            raise ValueError("it has no weight_map table {tensor: file}")
        for tensor, name in weight_map.items():
            if not isinstance(name, str):
                raise ValueError(f"it maps {tensor!r:.200} to {name!r:.200}")
        files = {name: _shard(index, name) for name in sorted(set(weight_map.values()))}
        return {tensor: files[name] for tensor, name in weight_map.items()}


def shards_of(index: Path) -> list[Path]:
    """The files of an index, each once, by name."""
    return sorted(set(read_shard_index(index).values()))


def load_json(content: bytes) -> Any:
    """JSON of a checkpoint, without duplicate keys.

    Raises:
        ValueError: It is no JSON, or has a duplicate key.
        RecursionError: It is nested too deeply.
    """

    def only_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for name, value in pairs:
            if name in table:
                raise ValueError(f"it has {name!r:.200} twice")
            table[name] = value
        return table

    return json.loads(content.decode("utf-8"), object_pairs_hook=only_once)


def _shard(index: Path, name: str) -> Path:
    if name in ("", ".", "..") or set(name) & set('/\\:\0"<>|?*\n\r'):
        raise ValueError(f"it names the file {name!r:.200}, which is no plain name")
    path = index.parent / name
    try:
        exists = path.is_file()
        # In the hub's cache snapshots/<revision>/* are links to blobs/*, the index included.
        homes = {index.parent.resolve(), index.resolve().parent}
        inside = exists and path.resolve().parent in homes
    except (OSError, RuntimeError):  # the name is too long, or links form a circle
        exists = inside = False
    if not exists:
        raise ValueError(f"it names {name!r:.200}, which does not exist")
    if not inside:
        raise ValueError(f"{name!r:.200} is a link to another folder")
    return path


def check_places(
    index: Path, weight_map: Mapping[str, Path], names: Mapping[Path, Iterable[str]]
) -> None:
    """Check that every tensor is in its file of the index, and in no other.

    Args:
        index: The index, for errors.
        weight_map: Its content.
        names: The tensors of each file.

    Raises:
        InputError: Index and files do not agree.
    """
    places: dict[str, Path] = {}
    with reading("sharded checkpoint", index):
        for file, held in names.items():
            for name in held:
                if (first := places.setdefault(name, file)) != file:
                    raise ValueError(f"both {first.name} and {file.name} have {name!r:.200}")
        wrong = [n for n in {**weight_map, **places} if places.get(n) != weight_map.get(n)]
        if wrong:
            shown = ", ".join(f"{name!r:.200}" for name in wrong[:_SHOWN])
            raise ValueError(f"its files and the index differ on {len(wrong)} tensors ({shown})")
