"""Safetensors, written one tensor at a time.

The library's `save_file` wants all tensors in memory. The table that it writes depends on names,
dtypes and shapes alone, so that it can be written first and the numbers as they come: the same
bytes as the library's, whatever the order that the tensors are given in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from hf_bert_impl.errors import InputError

from ..readers.safetensors import CODES
from ..tensors import DTYPES, TensorInfo
from .checked import check_unicode, raw_bytes

#: The table is filled up with spaces, so that the numbers start at a multiple of it.
_ALIGNMENT = 8
_ORDER = {dtype: place for place, dtype in enumerate(CODES)}


def write_safetensors(
    folder: Path,
    tensors: Mapping[str, TensorInfo],
    read: Callable[[str], Tensor],
    max_shard_size: int | None = None,
    metadata: Mapping[str, str] | None = None,
) -> tuple[Path, ...]:
    """Write `model.safetensors`, or shards and their index where one file would be too large.

    Args:
        folder: Where to write; it exists, and files of these names are replaced.
        tensors: What to write, by name.
        read: Gives a tensor of `tensors`, once for each; one at a time is held.
        max_shard_size: Most bytes of the tensors in a file, as in `save_pretrained`: in the order
            of `tensors`, a tensor that does not fit opens a new file, and a larger one has its
            own. None: one file.
        metadata: The files' `__metadata__`. None: `{"format": "pt"}`, which transformers asks for.

    Returns:
        The files, the index first where there is one.

    Raises:
        InputError: A dtype that safetensors has not, a name that is no Unicode, or a tensor
            that is not as announced.
        OSError: A file cannot be written.
    """
    shards = _split(tensors, max_shard_size)
    count = len(shards)
    metadata = {"format": "pt"} if metadata is None else metadata
    if count == 1:
        path = folder / "model.safetensors"
        _write_file(path, shards[0], read, metadata)
        return (path,)
    places: dict[str, str] = {}
    paths = [folder / "model.safetensors.index.json"]
    for number, shard in enumerate(shards, 1):
        paths.append(folder / f"model-{number:05d}-of-{count:05d}.safetensors")
        _write_file(paths[-1], shard, read, metadata)
        places |= dict.fromkeys(shard, paths[-1].name)
    index = {"metadata": {"total_size": sum(map(_size, tensors.values()))}, "weight_map": places}
    text = json.dumps(index, indent=2, sort_keys=True) + "\n"
    paths[0].write_text(text, encoding="utf-8")
    return tuple(paths)


def _size(info: TensorInfo) -> int:
    if info.dtype not in CODES or info.name == "__metadata__":
        raise InputError(
            f"tensor {info.name!r:.200} is of dtype {info.dtype}",
            f"one of {', '.join(CODES)}, and any name but __metadata__",
            "convert or rename it before",
        )
    return info.size * DTYPES[info.dtype].itemsize


def _split(
    tensors: Mapping[str, TensorInfo], max_shard_size: int | None
) -> list[dict[str, TensorInfo]]:
    if max_shard_size is None:
        return [dict(tensors)]
    shards: list[dict[str, TensorInfo]] = []
    current: dict[str, TensorInfo] = {}
    held = 0
    for name, info in tensors.items():
        size = _size(info)
        if size > max_shard_size:
            shards.append({name: info})
            continue
        if held + size > max_shard_size:
            shards.append(current)
            current, held = {}, 0
        current[name] = info
        held += size
    if current or not shards:
        shards.append(current)
    return shards


def _write_file(
    path: Path,
    tensors: Mapping[str, TensorInfo],
    read: Callable[[str], Tensor],
    metadata: Mapping[str, str],
) -> None:
    for name in tensors:
        check_unicode(name)
    sizes = {name: _size(info) for name, info in tensors.items()}
    # Wide dtypes first, so that every tensor starts at a multiple of its element's size.
    order = sorted(tensors, key=lambda name: (-_ORDER[tensors[name].dtype], name))
    table: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name in order:
        start, end = end, end + sizes[name]
        table[name] = {
            "dtype": CODES[tensors[name].dtype],
            "shape": tensors[name].shape,
            "data_offsets": [start, end],
        }
    header = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name in order:
            file.write(raw_bytes(tensors[name], read(name)).data)
