"""Whether the files of a sharded checkpoint hold what its index says, no less and no more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ..errors import ConversionError
from .shard_index import ShardIndex

_SHOWN = 5
_REMEDY = "download the whole checkpoint again"


def check_shards(path: Path, index: ShardIndex, names: Mapping[Path, Iterable[str]]) -> None:
    """Check that every tensor lies in the file of the index, and in that one alone.

    Args:
        path: The index file, for errors.
        index: What it says.
        names: The tensors that each file has.

    Raises:
        ConversionError: A tensor lies in two files, in another one, in none, or not in the index.
    """
    places: dict[str, str] = {}
    for file, held in names.items():
        for name in held:
            if name in places:
                raise ConversionError(
                    f"tensor {name!r:.200} lies in both {places[name]} and {file.name} of {path}",
                    "every tensor once",
                    _REMEDY,
                )
            places[name] = file.name
    wrong = [name for name, file in index.weight_map.items() if places.get(name) != file]
    if wrong:
        raise ConversionError(
            f"{path} places {_list(wrong)} in files that do not have them",
            "every tensor in the file that the index names",
            _REMEDY,
        )
    unlisted = [name for name in places if name not in index.weight_map]
    if unlisted:
        raise ConversionError(
            f"the files of {path} hold {_list(unlisted)}, which it does not list",
            "every tensor in the index",
            _REMEDY,
        )


def _list(names: list[str]) -> str:
    shown = ", ".join(f"{name!r:.200}" for name in names[:_SHOWN])
    more = len(names) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
