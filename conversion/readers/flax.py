"""Flax weights: `flax_model.msgpack` of transformers' FlaxBert classes.

The file is one MessagePack value: nested tables whose leaves are arrays, an extension type around
(shape, dtype, bytes) in MessagePack (flax, serialization.py). Names are the keys joined by "/".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_bert_impl.extras import require

from ..tensors import DTYPES, Checkpoint, Unread
from .mapped import byte_size, read_at, reading, tensor_at

#: Flax's extension types: an array, and a numpy scalar (stored as an array of ()).
_ARRAYS = (1, 3)
#: The key of a table that represents an array above a GiB, in flat pieces.
_CHUNKED = "__msgpack_chunked_array__"
#: The signature of a file: a table with a text as its first key, and the head of an array.
_TABLE = re.compile(rb"([\x81-\x8f]|\xde..|\xdf....)[\xa0-\xbf\xd9-\xdb]", re.DOTALL)
_HEAD = re.compile(rb"(\xc7.|\xc8..|\xc9....|[\xd4-\xd8])[\x01\x03]\x93", re.DOTALL)
_HEAD_BYTES = 1 << 16
#: Maximum entries of a table, a list, or the file. BERT-large with an optimizer has 1200 arrays.
_MAX_ENTRIES = 1 << 17
#: Characters of all names: at most the file's bytes, or this number for a small file.
_MIN_NAMES = 1 << 20


def read_flax(path: Path) -> Checkpoint:
    """Read a msgpack file.

    Raises:
        InputError: The file is damaged, or holds no table of arrays; or msgpack is missing.
    """
    unpackb = require("msgpack", "convert", "a Flax checkpoint").unpackb

    def table(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            raise ValueError("it has a name twice in one table")
        return made

    def unpack(data: Any, hook: Callable[[int, bytes], Any]) -> Any:
        limits = {"max_array_len": _MAX_ENTRIES, "max_map_len": _MAX_ENTRIES}
        return unpackb(data, ext_hook=hook, object_pairs_hook=table, **limits)

    def array(code: int, content: bytes) -> Tensor | Unread:
        if code not in _ARRAYS:
            return Unread((), f"extension {code}")
        shape, dtype, numbers = unpack(content, lambda code, _: Unread((), f"extension {code}"))
        if dtype not in DTYPES:
            return Unread(tuple(shape), str(dtype))
        if byte_size(shape, dtype) != len(numbers):
            raise ValueError(f"an array is {dtype} {shape!s:.100}, but has {len(numbers)} bytes")
        raw = torch.from_numpy(np.frombuffer(bytearray(numbers), np.uint8))
        return tensor_at(raw, 0, shape, dtype)

    tensors: dict[str, Tensor | Unread] = {}
    budget = max(path.stat().st_size, _MIN_NAMES)
    with reading("MessagePack", path):
        tree = unpack(path.read_bytes(), array)
        if not isinstance(tree, dict):
            raise ValueError("it does not start with a table")
        for name, leaf in _leaves("", tree):
            budget -= len(name)
            if name in tensors or budget < 0:
                raise ValueError(f"it has {name!r:.200} twice, or its names are too long")
            if len(tensors) == _MAX_ENTRIES:
                raise ValueError(f"it has more than {_MAX_ENTRIES} entries")
            tensors[name] = leaf
    return Checkpoint(tensors)


def _leaves(prefix: str, tree: dict[str, Any]) -> Iterator[tuple[str, Tensor | Unread]]:
    for key, value in tree.items():
        if isinstance(value, list):
            value = {str(place): item for place, item in enumerate(value)}
        if isinstance(value, dict) and _CHUNKED not in value:
            yield from _leaves(f"{prefix}{key}/", value)
        else:
            yield prefix + key, _leaf(value)


def _leaf(value: Any) -> Tensor | Unread:
    if isinstance(value, dict):  # an array in pieces
        pieces = [value["chunks"][str(place)] for place in range(len(value["chunks"]))]
        shape = [value["shape"][str(place)] for place in range(len(value["shape"]))]
        kinds = {(piece.dtype, piece.dim()) for piece in pieces}
        if kinds != {(pieces[0].dtype, 1)}:
            raise ValueError("the pieces of an array differ in dtype, or are not flat")
        return torch.cat(pieces).reshape(shape)
    return value if isinstance(value, Tensor | Unread) else Unread((), type(value).__name__)


def is_flax(path: Path) -> bool:
    """Whether a file is a MessagePack table with a Flax array among its first values."""
    head = read_at(path, 0, _HEAD_BYTES)
    return _TABLE.match(head) is not None and _HEAD.search(head) is not None
