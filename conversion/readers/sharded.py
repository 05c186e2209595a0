"""Checkpoints in one file or in several, which `pytorch_model.bin.index.json` and its kin list.

Such an index is `{"metadata": {…}, "weight_map": {tensor: file name}}`, whatever the format of the
files. It comes with the checkpoint, so that nothing in it is believed: a name of a file is a plain
name, and what it names lies beside the index.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from hf_bert_impl.errors import InputError

from ..tensors import Reader, TensorInfo
from .mapped import read_small

#: Bytes of an index: the largest models have some 10 000 tensors and an index below 2 MiB.
MAX_INDEX_BYTES = 64 << 20
#: Names that an error lists.
_SHOWN = 5
_REMEDY = "download the whole checkpoint again"


@dataclass(frozen=True)
class ShardIndex:
    """A checked index; every file that it names is there."""

    weight_map: dict[str, str]
    """The file of each tensor, a plain name in the folder of the index."""
    files: tuple[Path, ...]
    """The files, each once, by name."""


def read_shard_index(index: Path) -> ShardIndex:
    """Read and check a `*.index.json`.

    A link to a file elsewhere is refused, but for the hub's cache, which keeps the index itself
    beside the files that its links lead to.

    Returns:
        The tensors' files.

    Raises:
        InputError: The file cannot be read, is no JSON, has a key twice, is no such table,
            or names a file that is missing or not in its folder.
    """
    table = _load(index)
    weight_map = table.get("weight_map") if isinstance(table, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(
            f"{index} has no weight_map table",
            'a shard index {"metadata": {…}, "weight_map": {tensor: file}}',
            _REMEDY,
        )
    for tensor, name in weight_map.items():
        if not isinstance(name, str):
            raise InputError(
                f"{index} maps {tensor!r:.200} to {name!r:.200}", "the name of a file", _REMEDY
            )
    names = sorted(set(weight_map.values()))
    return ShardIndex(weight_map, tuple(_shard(index, name) for name in names))


def _load(index: Path) -> Any:
    text = read_small(index, MAX_INDEX_BYTES, "a shard index")
    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=only_once)
    except DuplicateKeyError as error:
        raise InputError(f"{index} has {error}", "every key once", _REMEDY) from None
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, or nested without end
        raise InputError(f"{index} is no JSON ({error})", "a shard index", _REMEDY) from None


class DuplicateKeyError(Exception):
    """A key that a JSON object has twice, in words that follow "has"."""


def only_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An `object_pairs_hook` of `json.loads` that refuses what the library passes over.

    Raises:
        DuplicateKeyError: A key stands there twice.
    """
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise DuplicateKeyError(f"{key!r:.200} twice")
        table[key] = value
    return table


def _shard(index: Path, name: str) -> Path:
    if name in ("", ".", "..") or set(name) & set('/\\:\0"<>|?*\n\r'):
        raise InputError(
            f"{index} names the file {name!r:.200}",
            "the plain name of a file beside the index",
            "do not use this checkpoint, or mend its index",
        )
    path = index.parent / name
    try:
        is_there = path.is_file()
        # In the hub's cache snapshots/<revision>/* are links to blobs/*, the index among them.
        homes = {index.parent.resolve(), index.resolve().parent}
        inside = is_there and path.resolve().parent in homes
    except (OSError, RuntimeError):  # a name too long, or links in a circle
        is_there = inside = False
    if not is_there:
        raise InputError(
            f"{index} names {name!r:.200}, which is not there", "every shard beside it", _REMEDY
        )
    if not inside:
        raise InputError(
            f"{path} is a link to another folder",
            "every shard beside its index",
            "put the file itself in its place",
        )
    return path


class Shard(Protocol):
    """One open file of a checkpoint."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Its tensors by name, in the order of the file."""

    def read(self, name: str, /) -> Tensor:
        """Read one of them, of one of `DTYPES`."""


class ShardedReader(Reader):
    """A checkpoint of one file, or of the files that an index lists.

    Args:
        path: The file, or the index.

    Raises:
        InputError: A file cannot be read or is damaged, or index and files do not agree.
    """

    def __init__(self, path: Path) -> None:
        index = read_shard_index(path) if path.suffix == ".json" else None
        paths = index.files if index else (path,)
        self.files = (path, *paths) if index else paths
        shards = {shard: self._open(shard) for shard in paths}
        if index:
            names = {shard: file.tensors.keys() for shard, file in shards.items()}
            _check_places(path, self._stored_names(index.weight_map, names), names)
        self._homes = {name: shard for shard in shards.values() for name in shard.tensors}
        self.tensors = {name: shard.tensors[name] for name, shard in self._homes.items()}

    @abc.abstractmethod
    def _open(self, path: Path) -> Shard:
        """Open one file, and take note of what it says of its writer."""

    def _stored_names(
        self, weight_map: dict[str, str], names: Mapping[Path, Iterable[str]]
    ) -> dict[str, str]:
        """The index's `weight_map` under the names that the files have."""
        return weight_map

    def _read(self, name: str) -> Tensor:
        return self._homes[name].read(name)

    def close(self) -> None:
        self._homes = {}


def _check_places(
    index: Path, weight_map: Mapping[str, str], names: Mapping[Path, Iterable[str]]
) -> None:
    """Check that every tensor lies in the file that the index names, and in that one alone."""
    places: dict[str, str] = {}
    for file, held in names.items():
        for name in held:
            if name in places:
                raise InputError(
                    f"tensor {name!r:.200} lies in both {places[name]} and {file.name} of {index}",
                    "every tensor once",
                    _REMEDY,
                )
            places[name] = file.name
    wrong = [name for name, file in weight_map.items() if places.get(name) != file]
    if wrong:
        raise InputError(
            f"{index} places {_list(wrong)} in files that do not have them",
            "every tensor in the file that the index names",
            _REMEDY,
        )
    unlisted = [name for name in places if name not in weight_map]
    if unlisted:
        raise InputError(
            f"the files of {index} hold {_list(unlisted)}, which it does not list",
            "every tensor in the index",
            _REMEDY,
        )


def _list(names: list[str]) -> str:
    shown = ", ".join(f"{name!r:.200}" for name in names[:_SHOWN])
    more = len(names) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
