"""The part of HDF5 that Keras and h5py write, read from the mapped bytes.

HDF5's own library is not asked: on damaged files it can run without end (and it has a record of
worse), and a checkpoint comes from anywhere. What h5py writes unless told otherwise is the oldest
layout, and a small one: groups as trees of named addresses, tensors as plain rows of bytes.
Everything else (chunks and filters, links to other files, the layouts of HDF5 1.8 and later) is
refused by name. The structures are those of the "HDF5 File Format Specification", version 3.0;
the numbers in parentheses are its sections.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor

from hf_bert_impl.errors import InputError

from ..tensors import DTYPES, TensorInfo
from .mapped import byte_size, damaged, map_file, tensor_at

SIGNATURE = b"\x89HDF\r\n\x1a\n"
#: The signature may follow a block of the user's own, of 512 bytes or a power of two above.
SIGNATURE_PLACES = (0, *(1 << power for power in range(9, 21)))

#: Bytes of headers, trees and names in one file. They are at most the file's own; BERT-large,
#: with its 400 tensors, has some 600 KiB.
_MAX_METADATA = 64 << 20
_MAX_DEPTH = 64
_UNDEFINED = 0xFFFFFFFFFFFFFFFF

# Header messages (IV.A.2) that mean something here. Others (fill values, times, comments) do not
# change where a tensor lies.
_DATASPACE, _LINK_INFO, _DATATYPE, _LINK, _EXTERNAL = 0x01, 0x02, 0x03, 0x06, 0x07
_LAYOUT, _FILTERS, _ATTRIBUTE, _CONTINUATION, _SYMBOL_TABLE = 0x08, 0x0B, 0x0C, 0x10, 0x11

#: Floats by (bytes, sign at, exponent at, its bits, mantissa at, its bits, exponent bias).
_FLOATS = {
    (2, 15, 10, 5, 0, 10, 15): "float16",
    (2, 15, 7, 8, 0, 7, 127): "bfloat16",
    (4, 31, 23, 8, 0, 23, 127): "float32",
    (8, 63, 52, 11, 0, 52, 1023): "float64",
}
_CLASSES = {2: "time", 3: "string", 4: "bitfield", 5: "opaque", 6: "compound", 7: "reference"}
_CLASSES |= {8: "enum", 9: "string", 10: "array", 11: "complex"}
#: What h5py makes of a bool: an enumeration over int8, its names padded or (version 3) not.
_BOOL = {b"FALSE\0\0\0TRUE\0\0\0\0\0\1", b"FALSE\0TRUE\0\0\1"}


@dataclass(frozen=True)
class _Dataset:
    """A tensor of the file."""

    shape: tuple[int, ...]
    dtype: str
    """A key of `DTYPES`, or HDF5's word for one that torch lacks."""
    big_endian: bool
    offset: int
    """Where its bytes start in the file; they end inside."""


class Hdf5File:
    """An HDF5 file in memory: the list of its datasets, and a few words about it.

    Raises:
        InputError: The file is damaged, or has what the module's text says is refused.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors: dict[str, TensorInfo] = {}
        """All datasets by path (no leading slash), in the order of the file."""
        self._data = map_file(path)
        self._datasets: dict[str, _Dataset] = {}
        self.attributes: dict[str, str] = {}
        """The root's attributes that are one string."""
        self._budget = min(len(self._data), _MAX_METADATA)
        self._ranges: list[tuple[int, int, str]] = []
        self._seen: set[int] = set()
        self._base = 0
        root = self._superblock()
        try:
            self._group("", root, 0)
        except UnicodeDecodeError:
            self._damaged("a name is no UTF-8")
        self._ranges.sort()
        for (_, end, name), (start, _, after) in itertools.pairwise(self._ranges):
            if start < end:  # a wrong address, which nothing else would show
                self._damaged(f"{name!r:.200} and {after!r:.200} share bytes")

    def read(self, name: str) -> Tensor:
        """Read one dataset, of one of `DTYPES`."""
        dataset = self._datasets[name]
        if not dataset.big_endian:
            return tensor_at(self._data, dataset.offset, dataset.shape, dataset.dtype)
        dtype = DTYPES[dataset.dtype]
        rows = (math.prod(dataset.shape), dtype.itemsize)
        raw = tensor_at(self._data, dataset.offset, rows, "uint8")
        return raw.flip(-1).view(dtype).reshape(dataset.shape)

    def _damaged(self, what: str) -> NoReturn:
        raise damaged("HDF5", self.path, what)

    def _refuse(self, what: str, expected: str) -> NoReturn:
        raise InputError(
            f"{self.path} {what}",
            expected,
            "save it again with Keras, or copy its datasets with h5py's defaults",
        )

    def _bytes(self, address: int, size: int) -> bytes:
        """Read metadata. Every reading counts, so that structures in a circle come to an end."""
        start = self._base + address
        if start + size > len(self._data):
            self._damaged(f"{size} bytes at {address} of {len(self._data)}")
        self._budget -= size
        if self._budget < 0:
            self._damaged("its headers take more bytes than it has (or more than 64 MiB)")
        return self._data[start : start + size]

    # The superblock (II.A), versions 0 and 1

    def _superblock(self) -> int:
        places = (p for p in SIGNATURE_PLACES if self._data[p : p + 8] == SIGNATURE)
        self._base = next(places, -1)
        if self._base < 0:
            raise InputError(f"{self.path} is no HDF5 file", "HDF5's signature", "check the path")
        version = self._bytes(8, 1)[0]
        if version > 1:
            self._refuse(f"is laid out for HDF5 1.8 or later (superblock {version})", "version 0")
        sizes = self._bytes(13, 2)
        if sizes != b"\x08\x08":
            self._refuse(f"has addresses of {sizes[0]} and lengths of {sizes[1]} bytes", "8 each")
        start = 24 if version == 0 else 28
        base, _, end, driver, _, root = struct.unpack("<6Q", self._bytes(start, 48))
        if base != self._base:
            self._damaged(f"its addresses start at {base}, its signature stands at {self._base}")
        if end > len(self._data):
            self._damaged(f"it has {len(self._data)} bytes of {end}")
        if driver != _UNDEFINED:
            self._refuse("is one of a family of files", "one file")
        return root

    # Groups: a tree (III.A.1) of nodes (III.B) that name objects; the names lie in a heap (III.D)

    def _group(self, name: str, header: int, depth: int) -> None:
        if header in self._seen:
            self._refuse(f"has a second name for one object: {name!r:.200}", "a name each")
        self._seen.add(header)
        if depth > _MAX_DEPTH:
            self._refuse(f"has more than {_MAX_DEPTH} groups in one another", "fewer")
        messages = self._header(header)
        if not name:
            self._root_attributes(messages)
        tables = messages.get(_SYMBOL_TABLE)
        if tables is None:
            if _LINK in messages or _LINK_INFO in messages:
                self._refuse(
                    f"has groups of HDF5 1.8 or later, or links to other files, at {name!r:.200}",
                    "groups as Keras writes them",
                )
            dataset = self._dataset(name, messages)
            self._datasets[name] = dataset
            self.tensors[name] = TensorInfo(name, dataset.shape, dataset.dtype)
            return
        tree, heap = self._unpack("<2Q", tables[0], 0)
        names = self._heap(heap)
        links: set[str] = set()
        for place, child in self._links(tree, name):
            end = names.find(b"\0", place)
            link = names[place:end].decode() if end > place else ""
            if not link or link == "." or "/" in link or link in links:
                self._damaged(f"the group {name!r:.200} has the name {link!r:.200}")
            links.add(link)
            inner = f"{name}/{link}" if name else link
            self._budget -= len(inner)
            self._group(inner, child, depth + 1)

    def _heap(self, address: int) -> bytes:
        head = self._bytes(address, 32)
        if head[:5] != b"HEAP\0":
            self._damaged(f"no names at {address}")
        size, _, segment = struct.unpack_from("<3Q", head, 8)
        return self._bytes(segment, size)

    def _links(
        self, address: int, name: str, level: int | None = None
    ) -> Iterator[tuple[int, int]]:
        """Where the name of each object of a group lies in the heap, and where its header is."""
        head = self._bytes(address, 24)
        if head[:5] != b"TREE\0" or (level is not None and head[5] != level):
            self._damaged(f"no tree of the group {name!r:.200} at {address}")
        count = int.from_bytes(head[6:8], "little")
        body = self._bytes(address + 24, 16 * count + 8)
        for (child,) in struct.iter_unpack("<8xQ", body[:-8]):
            if head[5]:
                if level is None and head[5] > 16:  # 32 entries a node: more than any file has
                    self._damaged(f"a tree of {head[5]} levels")
                yield from self._links(child, name, head[5] - 1)
                continue
            node = self._bytes(child, 8)
            if node[:5] != b"SNOD\1":
                self._damaged(f"no node of the group {name!r:.200} at {child}")
            entries = self._bytes(child + 8, 40 * int.from_bytes(node[6:8], "little"))
            for place, header, cache in struct.iter_unpack("<2QI20x", entries):
                if cache == 2:
                    self._refuse(f"has a soft link in {name!r:.200}", "datasets alone")
                yield place, header

    # Object headers (IV.A.1.a)

    def _header(self, address: int) -> dict[int, list[bytes]]:
        """The messages of an object by type."""
        head = self._bytes(address, 16)
        if head[:4] == b"OHDR":
            self._refuse("has object headers of HDF5 1.8 or later", "version 1")
        if head[0] != 1:
            self._damaged(f"no object header at {address}")
        count = int.from_bytes(head[2:4], "little")
        blocks = [self._bytes(address + 16, int.from_bytes(head[8:12], "little"))]
        messages: dict[int, list[bytes]] = {}
        for block in blocks:  # grows by continuations
            place = 0
            while count and place + 8 <= len(block):
                kind, size, flags = struct.unpack_from("<HHB", block, place)
                body = block[place + 8 : place + 8 + size]
                if len(body) < size:
                    self._damaged(f"a message ends beyond the object header at {address}")
                place += 8 + size
                count -= 1
                if kind == _CONTINUATION:
                    blocks.append(self._bytes(*self._unpack("<2Q", body, 0)))
                elif flags & 2 and kind in (_DATASPACE, _DATATYPE, _LAYOUT):
                    self._refuse("has datasets that share a type", "plain datasets")
                else:
                    messages.setdefault(kind, []).append(body)
        return messages

    def _unpack(self, form: str, body: bytes, place: int) -> tuple[Any, ...]:
        if place + struct.calcsize(form) > len(body):
            self._damaged("a message of an object header is too short")
        return struct.unpack_from(form, body, place)

    # Datasets

    def _dataset(self, name: str, messages: dict[int, list[bytes]]) -> _Dataset:
        if not {_DATASPACE, _DATATYPE, _LAYOUT} <= messages.keys():
            self._damaged(f"{name!r:.200} is neither group nor dataset")
        if _EXTERNAL in messages:
            self._refuse(f"keeps {name!r:.200} in another file", "every dataset in the file")
        if _FILTERS in messages:
            self._refuse(f"has {name!r:.200} compressed", "plain datasets")
        shape = self._shape(messages[_DATASPACE][0], name)
        dtype, big_endian, item = self._dtype(messages[_DATATYPE][0])
        offset, size = self._place(messages[_LAYOUT][0], name)
        expected = byte_size(shape, dtype) if dtype in DTYPES else byte_size((*shape, item), "int8")
        if expected is None:
            self._damaged(f"{name!r:.200} is {dtype} {list(shape)}, more than any file holds")
        if expected and offset == _UNDEFINED:
            self._damaged(f"the bytes of {name!r:.200} were never written")
        start = self._base + offset if expected else 0
        if expected and (size != expected or start + expected > len(self._data)):
            self._damaged(
                f"{name!r:.200} is {dtype} {list(shape)}, but has {size} bytes at {start} of "
                f"{len(self._data)}"
            )
        if expected:
            self._ranges.append((start, start + expected, name))
        return _Dataset(shape, dtype, big_endian, start)

    def _shape(self, body: bytes, name: str) -> tuple[int, ...]:
        """A dataspace message (IV.A.2.b), versions 1 and 2."""
        version, rank, _, kind = self._unpack("<4B", body, 0)
        if version not in (1, 2) or (version == 2 and kind == 2):
            self._refuse(f"has {name!r:.200} without a shape", "tensors")
        return tuple(self._unpack(f"<{rank}Q", body, 8 if version == 1 else 4))

    def _dtype(self, body: bytes) -> tuple[str, bool, int]:
        """A datatype message (IV.A.2.d): its name, whether it is big-endian, its bytes."""
        kind, flags, sign, _, size = self._unpack("<4BI", body, 0)
        kind, big_endian = kind & 15, bool(flags & 1)
        if kind == 0:
            offset, bits = self._unpack("<2H", body, 8)
            if offset == 0 and bits == 8 * size:
                return f"{'' if flags & 8 else 'u'}int{bits}", big_endian, size
        if kind == 1:
            fields = self._unpack("<2H4BI", body, 8)
            dtype = _FLOATS.get((size, sign, *fields[2:]))
            if dtype and fields[:2] == (0, 8 * size) and flags & 0x70 == 0x20:
                return dtype, big_endian, size
        if kind == 8 and size == 1 and body[20:].rstrip(b"\0") in {b.rstrip(b"\0") for b in _BOOL}:
            return "bool", False, size
        return _CLASSES.get(kind, "number"), False, size

    def _place(self, body: bytes, name: str) -> tuple[int, int]:
        """A layout message (IV.A.2.i), versions 3 and 4: an address and a number of bytes."""
        version, kind = self._unpack("<2B", body, 0)
        if version not in (3, 4) or kind != 1:
            self._refuse(f"has {name!r:.200} in chunks or elsewhere", "datasets in one piece")
        offset, size = self._unpack("<2Q", body, 2)
        return offset, size

    # Attributes (IV.A.2.m) of the root

    def _root_attributes(self, messages: dict[int, list[bytes]]) -> None:
        for body in messages.get(_ATTRIBUTE, []):
            version, _, *sizes = self._unpack("<2B3H", body, 0)
            if version not in (1, 2, 3):
                self._damaged(f"an attribute of version {version}")
            place = 9 if version == 3 else 8
            parts = []
            for size in sizes:  # its name, type and shape; its value is what remains
                parts.append(body[place : place + size])
                place += (size + 7) // 8 * 8 if version == 1 else size
            name, dtype, space = parts
            if self._shape(space, "an attribute") == ():
                value = self._string(dtype, body[place:])
                if value is not None:
                    self.attributes[name.rstrip(b"\0").decode()] = value

    def _string(self, dtype: bytes, value: bytes) -> str | None:
        kind, flags, _, _, size = self._unpack("<4BI", dtype, 0)
        if kind & 15 == 3:
            return value[:size].rstrip(b"\0 ").decode()
        if kind & 15 == 9 and flags & 15 == 1:
            length, address, index = self._unpack("<IQI", value, 0)
            return self._heap_object(address, index)[:length].decode()
        return None

    def _heap_object(self, address: int, wanted: int) -> bytes:
        """A value of variable length, from a global heap (III.E)."""
        head = self._bytes(address, 16)
        if head[:5] != b"GCOL\1":
            self._damaged(f"no strings at {address}")
        place, end = address + 16, address + int.from_bytes(head[8:], "little")
        while place + 16 <= end:
            index, size = struct.unpack("<H6xQ", self._bytes(place, 16))
            if index == wanted:
                return self._bytes(place + 16, size)
            if index == 0:
                break
            place += 16 + (size + 7) // 8 * 8
        self._damaged(f"no string {wanted} at {address}")
