"""Checkpoints in several files, which `pytorch_model.bin.index.json` and its kin list.

Such an index is `{"metadata": {…}, "weight_map": {tensor: file name}}`, whatever the format of the
files. It comes with the checkpoint, so that nothing in it is believed: a name of a file is a plain
name, and what it names lies beside the index.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .mapped import read_at, reading

#: Bytes of an index: the largest models have some 10 000 tensors and an index below 2 MiB.
_MAX_INDEX_BYTES = 64 << 20
#: Names that an error lists.
_SHOWN = 5


def read_shard_index(index: Path) -> dict[str, Path]:
    """Read and check a `*.index.json`: the file of each tensor, which is there.

    A link to a file elsewhere is refused, but for the hub's cache, which keeps the index itself
    beside the files that its links lead to.

    Raises:
        InputError: The file cannot be read, is no JSON, has a key twice, is no such table,
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
    """The files that an index names, each once, by name."""
    return sorted(set(read_shard_index(index).values()))


def load_json(content: bytes) -> Any:
    """JSON of a checkpoint, in which no key of a table may occur twice.

    Raises:
        ValueError: It is no JSON, or has a key twice.
        RecursionError: It is nested without end.
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
        raise ValueError(f"it names the file {name!r:.200}, not the plain name of one beside it")
    path = index.parent / name
    try:
        is_there = path.is_file()
        # In the hub's cache snapshots/<revision>/* are links to blobs/*, the index among them.
        homes = {index.parent.resolve(), index.resolve().parent}
        inside = is_there and path.resolve().parent in homes
    except (OSError, RuntimeError):  # a name too long, or links in a circle
        is_there = inside = False
    if not is_there:
        raise ValueError(f"it names {name!r:.200}, which is not there")
    if not inside:
        raise ValueError(f"{name!r:.200} is a link to another folder")
    return path


def check_places(
    index: Path, weight_map: Mapping[str, Path], names: Mapping[Path, Iterable[str]]
) -> None:
    """Check that every tensor lies in the file that the index names, and in that one alone.

    Args:
        index: The index, for errors.
        weight_map: What it says.
        names: The tensors of each file.

    Raises:
        InputError: Index and files do not agree.
    """
    places: dict[str, Path] = {}
    with reading("sharded checkpoint", index):
        for file, held in names.items():
            for name in held:
                if (first := places.setdefault(name, file)) != file:
                    raise ValueError(f"{name!r:.200} lies in both {first.name} and {file.name}")
        wrong = [n for n in {**weight_map, **places} if places.get(n) != weight_map.get(n)]
        if wrong:
            shown = ", ".join(f"{name!r:.200}" for name in wrong[:_SHOWN])
            raise ValueError(f"it and its files do not agree on where {shown} are, of {len(wrong)}")
