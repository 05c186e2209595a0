"""Flax weights: `flax_model.msgpack` of transformers' FlaxBert classes, whole or in shards.

The file is one MessagePack value: tables in tables, and at the leaves arrays as an extension type
of their own, around (shape, dtype, bytes) in MessagePack again (flax, serialization.py). Names are
the keys on the way, joined by "/".
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_bert_impl.errors import InputError

from ..tensors import DTYPES, TensorInfo
from .mapped import byte_size, tensor_at
from .messagepack import Head, MessagePack
from .sharded import ShardedReader

#: Flax's extension types: an array, a complex number, a numpy scalar (stored as an array of ()).
ARRAY, COMPLEX, SCALAR = 1, 2, 3
#: The key that marks a table which stands for an array above a GiB, cut into flat pieces.
CHUNKED = "__msgpack_chunked_array__"

_MAX_DEPTH = 64
#: Values in one file: BERT-large, with two slots of an optimizer, has some 1200 arrays.
_MAX_VALUES = 1 << 17
#: Names may take as many bytes as the file has, or so many in a small one.
_MIN_NAME_BYTES = 1 << 20
#: Values that are looked at for the first array, to know the format.
_FIRST_VALUES = 1000


@dataclass(frozen=True)
class _Leaf:
    """An array, or a value that is none (then its dtype says what it is)."""

    shape: tuple[int, ...]
    dtype: str
    offset: int = 0
    """Where its bytes start."""
    value: int | float | bool | None = None
    """A plain number's value."""
    pieces: tuple[_Leaf, ...] = ()
    """An array that lies in pieces: flat ones, in order."""


class FlaxFile:
    """A msgpack file in memory and the list of its leaves.

    Raises:
        InputError: The file is damaged, or no table of tables and arrays.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors: dict[str, TensorInfo] = {}
        """All leaves by name, in the order of the file."""
        self._leaves: dict[str, _Leaf] = {}
        self._pack = MessagePack(path)
        self._values = 0
        size = len(self._pack.data)
        self._name_bytes = max(size, _MIN_NAME_BYTES)
        head = self._pack.head(0, size)
        if head.kind != "table":
            self._pack.damaged(f"it starts with {head.kind}, not with a table")
        tree, end = self._table(head, size, 0)
        if end < size:
            self._pack.damaged(f"{size - end} bytes follow its end")
        self._flatten("", tree)

    def _table(self, head: Head, end: int, depth: int) -> tuple[dict[str, Any], int]:
        """The entries of a table, or of a list by position; and where it ends."""
        if depth > _MAX_DEPTH:
            self._pack.damaged(f"more than {_MAX_DEPTH} tables in one another")
        at, tree = head.start, dict[str, Any]()
        for position in range(head.length):
            key = str(position)
            if head.kind == "table":
                key, at = self._pack.text(at, end, "a key")
            if key in tree:
                self._pack.damaged(f"{key!r:.200} is twice in one table")
            self._values += 1
            if self._values > _MAX_VALUES:
                self._pack.damaged(f"more than {_MAX_VALUES} values")
            value = self._pack.head(at, end)
            if value.kind in ("table", "list"):
                tree[key], at = self._table(value, end, depth + 1)
            else:
                tree[key], at = self._leaf(value, key), value.end
        return tree, at

    def _leaf(self, head: Head, key: str) -> _Leaf:
        if head.kind == "ext" and head.value in (ARRAY, SCALAR):
            return self._array(head, key)
        if head.kind == "ext":
            return _Leaf((), "complex" if head.value == COMPLEX else f"extension {head.value}")
        if head.kind == "int64" and head.value > 0x7FFFFFFFFFFFFFFF:
            return _Leaf((), "uint64")
        return _Leaf((), "string" if head.kind == "text" else head.kind, value=head.value)

    def _array(self, head: Head, key: str) -> _Leaf:
        """An array: a list of its shape, its dtype's name and its bytes."""
        outer = self._pack.head(head.start, head.end)
        sizes = self._pack.head(outer.start, head.end)
        if (outer.kind, outer.length, sizes.kind) != ("list", 3, "list"):
            self._pack.damaged(f"the array {key!r:.200} is no (shape, dtype, bytes)")
        at, shape = sizes.start, list[int]()
        for _ in range(sizes.length):
            size = self._pack.head(at, head.end)
            if size.kind != "int64" or size.value < 0 or len(shape) == 99:
                self._pack.damaged(f"the array {key!r:.200} has no shape")
            shape.append(size.value)
            at = size.end
        dtype, at = self._pack.text(at, head.end, f"the dtype of {key!r:.200}")
        content = self._pack.head(at, head.end)
        if content.kind != "bytes" or content.end != head.end:
            self._pack.damaged(f"the array {key!r:.200} does not end where it says")
        if dtype in DTYPES and byte_size(shape, dtype) != content.length:
            self._pack.damaged(f"{key!r:.200} is {dtype} {shape}, but has {content.length} bytes")
        return _Leaf(tuple(shape), dtype, content.start)

    def _flatten(self, prefix: str, tree: dict[str, Any]) -> None:
        for key, value in tree.items():
            name = prefix + key
            self._name_bytes -= len(name)
            if self._name_bytes < 0:
                self._pack.damaged("its names are longer than itself")
            if isinstance(value, dict) and CHUNKED not in value:
                self._flatten(name + "/", value)
                continue
            if name in self._leaves:
                self._pack.damaged(f"{name!r:.200} is there twice")
            leaf = self._join(name, value) if isinstance(value, dict) else value
            self._leaves[name] = leaf
            self.tensors[name] = TensorInfo(name, leaf.shape, leaf.dtype)

    def _join(self, name: str, table: dict[str, Any]) -> _Leaf:
        """An array in pieces, from the table that stands for it."""
        sizes = [leaf.value for leaf in self._numbered(name, table.get("shape"))]
        pieces = self._numbered(name, table.get("chunks"))
        shape = [size for size in sizes if isinstance(size, int) and size >= 0]
        if len(shape) < len(sizes):
            self._pack.damaged(f"the array in pieces {name!r:.200} has no shape")
        dtype = pieces[0].dtype if pieces else ""
        if dtype not in DTYPES or any(len(p.shape) != 1 or p.dtype != dtype for p in pieces):
            self._pack.damaged(f"the pieces of {name!r:.200} are no flat arrays of one dtype")
        elements = sum(piece.shape[0] for piece in pieces)
        if byte_size(shape, dtype) != elements * DTYPES[dtype].itemsize:
            self._pack.damaged(f"{name!r:.200} is {shape!s:.200}, but its pieces have {elements}")
        return _Leaf(tuple(shape), dtype, pieces=tuple(pieces))

    def _numbered(self, name: str, table: Any) -> list[_Leaf]:
        """The leaves of a table whose keys are "0", "1" and so on."""
        places = range(len(table)) if isinstance(table, dict) else ()
        leaves = [leaf for place in places if isinstance(leaf := table.get(str(place)), _Leaf)]
        if not isinstance(table, dict) or len(leaves) < len(table):
            self._pack.damaged(f"the array in pieces {name!r:.200} lacks its shape or a piece")
        return leaves

    def read(self, name: str) -> Tensor:
        """Read one leaf, a number or an array of one of `DTYPES`."""
        leaf = self._leaves[name]
        if leaf.value is not None:
            return torch.tensor(leaf.value, dtype=DTYPES[leaf.dtype])
        pieces = [
            tensor_at(self._pack.data, piece.offset, piece.shape, piece.dtype)
            for piece in leaf.pieces or (leaf,)
        ]
        return torch.cat(pieces).reshape(leaf.shape) if leaf.pieces else pieces[0]


def is_flax(path: Path) -> bool:
    """Whether a file is a table of MessagePack, with an array of Flax's among its first values."""
    try:
        pack = MessagePack(path)
        head = pack.head(0, len(pack.data))
        if head.kind != "table" or pack.head(head.start, len(pack.data)).kind != "text":
            return False
        at = head.start
        for _ in range(_FIRST_VALUES):
            head = pack.head(at, len(pack.data))
            if head.kind == "ext" and head.value in (ARRAY, SCALAR):
                inner = pack.head(head.start, head.end)
                return (inner.kind, inner.length) == ("list", 3)
            at = head.start if head.kind in ("table", "list") else head.end
    except InputError:
        return False
    return False


class FlaxReader(ShardedReader):
    """The arrays of `flax_model.msgpack`, or of the files of `flax_model.msgpack.index.json`."""

    format = "flax"

    def _open(self, path: Path) -> FlaxFile:
        return FlaxFile(path)
