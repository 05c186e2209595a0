"""Safetensors, written one tensor at a time.

The library's `save_file` wants all tensors in memory. The table that it writes depends on names,
dtypes and shapes alone, so that it can be written first and the numbers as they come: the same
bytes as the library's, whatever the order that the tensors are given in.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import split_state_dict_into_shards_factory

from hf_bert_impl.errors import InputError

from ..readers.safetensors import CODES
from ..tensors import DTYPES, TensorInfo
from .checked import Read, check_unicode, raw_bytes

#: The table is filled up with spaces, so that the numbers start at a multiple of it.
_ALIGNMENT = 8
_ORDER = {dtype: place for place, dtype in enumerate(CODES)}


def write_safetensors(
    folder: Path,
    tensors: Mapping[str, TensorInfo],
    read: Read,
    max_shard_size: int | None = None,
) -> tuple[Path, ...]:
    """The `Writer` of safetensors: of one file, or shards and their index.

    Args:
        folder: Where to write `model.safetensors`; it exists.
        tensors: As for every `Writer`.
        read: As for every `Writer`.
        max_shard_size: Most bytes of the tensors in a file, as in `save_pretrained`: in the order
            of `tensors`, a tensor that does not fit opens a new file, and a larger one has its
            own. None: one file.

    Returns:
        The files, the index first where there is one.
    """
    split = split_state_dict_into_shards_factory(
        dict(tensors),
        get_storage_size=_size,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=sys.maxsize if max_shard_size is None else max_shard_size,
    )
    files = split.filename_to_tensors or {"model.safetensors": []}
    for file, names in files.items():
        _write_file(folder / file, {name: tensors[name] for name in names}, read)
    paths = tuple(folder / file for file in files)
    if not split.is_sharded:
        return paths
    index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
    text = json.dumps(index, indent=2, sort_keys=True) + "\n"
    path = folder / "model.safetensors.index.json"
    path.write_text(text, encoding="utf-8")
    return (path, *paths)


def _size(info: TensorInfo) -> int:
    if info.dtype not in CODES or info.name == "__metadata__":
        raise InputError(
            f"tensor {info.name!r:.200} is of dtype {info.dtype}",
            f"one of {', '.join(CODES)}, and any name but __metadata__",
            "convert or rename it before",
        )
    return info.size * DTYPES[info.dtype].itemsize


def _write_file(path: Path, tensors: Mapping[str, TensorInfo], read: Read) -> None:
    for name in tensors:
        check_unicode(name)
    sizes = {name: _size(info) for name, info in tensors.items()}
    # Wide dtypes first, so that every tensor starts at a multiple of its element's size.
    order = sorted(tensors, key=lambda name: (-_ORDER[tensors[name].dtype], name))
    # Without its metadata transformers refuses the file.
    table: dict[str, object] = {"__metadata__": {"format": "pt"}}
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
            file.write(raw_bytes(tensors[name], read).data)
