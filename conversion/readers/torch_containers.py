"""The files that `torch.save` writes: a pickle, and the numbers of its tensors beside it.

Since torch 1.6 that is a zip archive of stored entries, `<name>/data.pkl` and one
`<name>/data/<key>` a storage, each with its crc32 (caffe2/serialize/inline_container.cc). Before,
it was a stream: three small pickles (a magic number, the protocol 1001, facts on the machine), the
pickle, a pickled list of keys, and per key the number of elements, 8 bytes, and the elements
(torch/serialization.py, `_legacy_save`). That has no checksum.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_bert_impl.errors import InputError

from ..tensors import DTYPES
from .mapped import map_file, read_at, tensor_at
from .pickled_objects import Storage, TensorRecord
from .restricted_pickle import RestrictedUnpickler

#: 0x1950A86A20F9469CFC6C as a pickled int, whatever the protocol (2 is the usual one).
LEGACY_MAGIC = bytes.fromhex("8a0a6cfc9c46f9206aa85019")
LEGACY_PROTOCOL = 1001
ZIP_MAGIC = b"PK\x03\x04"
#: How pickles of protocol 2 and later begin, and all of them end.
_PICKLE, _PICKLE_END = b"\x80", b"."
#: The members of the tar files of torch 0.1, before 2017.
_TAR_MEMBERS = (b"sys_info", b"pickle", b"storages", b"tensors")
_TAR_MAGIC_AT = 257
_LOCAL_HEADER = struct.Struct("<4s2xHH16xHH")
_ENCRYPTED = 1
#: A line in a pickle is a name or a number.
_MAX_LINE = 1 << 16
_REMEDY = "download it again, or save it again by torch.save"


@dataclass(frozen=True)
class Record:
    """Where the bytes of a storage lie in the file."""

    start: int
    size: int
    crc: int | None
    """Their crc32, where the container has one."""


class TorchFile:
    """One file, mapped into memory, its pickle read and its tensors not.

    Raises:
        InputError: The file cannot be read, is none of the containers, is damaged, or its
            pickle would run code.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.software = ""
        """Which container it is."""
        self.root: Any = None
        """What was pickled, as `RestrictedUnpickler.load` gives it."""
        self._records: dict[str, Record] = {}
        self._checked: set[str] = set()
        self._map = map_file(path)
        kind = _kind(self._map[:512])
        if kind == "zip":
            self._open_zip()
        elif kind == "legacy":
            self._open_legacy()
        elif kind == "tar":
            raise InputError(
                f"{path} is a tar file of torch 0.1",
                "a file of torch 0.2 (2017) or later",
                "load it in torch 1.x and save it again",
            )
        else:
            if self._map[:1] == _PICKLE or self._map[-1:] == _PICKLE_END:
                # A plain pickle: the user is told first what it would run.
                RestrictedUnpickler(_Window(self._map, 0, len(self._map)), path).load()
            raise self._damaged("is no file of torch.save")

    def _damaged(self, what: str) -> InputError:
        return InputError(f"{self.path} {what}", "an undamaged PyTorch checkpoint", _REMEDY)

    def _unpickle(self, source: _Window) -> tuple[Any, dict[str, Storage]]:
        unpickler = RestrictedUnpickler(source, self.path)
        return unpickler.load(), unpickler.storages

    # --- zip ---------------------------------------------------------------------------------

    def _open_zip(self) -> None:
        self.software = "PyTorch, zip container (torch 1.6 or later)"
        entries = self._entries()
        pickles = [name for name in entries if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise self._damaged(f"holds {len(pickles)} pickles `<name>/data.pkl`")
        folder = pickles[0].removesuffix("data.pkl")
        if f"{folder}constants.pkl" in entries:
            raise InputError(
                f"{self.path} is a TorchScript program",
                "weights written by torch.save",
                "load it by torch.jit.load and save its state_dict()",
            )
        order = entries.get(f"{folder}byteorder")
        if order is not None and self._bytes(f"{folder}byteorder", order) != b"little":
            raise self._wrong_order()
        pickled = entries[pickles[0]]
        self._check(pickles[0], pickled)
        self.root, storages = self._unpickle(
            _Window(self._map, pickled.start, pickled.start + pickled.size)
        )
        for key, storage in storages.items():
            record = entries.get(f"{folder}data/{key}")
            if record is None:
                raise self._damaged(f"has no entry {folder}data/{key}"[:200])
            if record.size != storage.size * storage.itemsize:
                raise self._damaged(
                    f"has {record.size} bytes in {folder}data/{key}, and names "
                    f"{storage.size} of {storage.dtype} there"
                )
            self._records[key] = record

    def _entries(self) -> dict[str, Record]:
        infos = _zip_infos(self.path)
        if infos is None:
            raise self._damaged("is no complete zip file")
        if len({info.filename for info in infos}) < len(infos):
            raise self._damaged("has an entry of its zip file twice")
        # torch.serialization.set_crc32_options(False) writes zeros.
        checked = any(info.CRC for info in infos)
        return {info.filename: self._entry(info, checked) for info in infos}

    def _entry(self, info: zipfile.ZipInfo, checked: bool) -> Record:
        at = info.header_offset
        start = at + _LOCAL_HEADER.size
        if not 0 <= at <= start <= len(self._map):
            raise self._damaged(f"has entry {info.filename!r:.100} outside the file")
        magic, flags, method, name_size, extra_size = _LOCAL_HEADER.unpack(self._map[at:start])
        stored = info.compress_type == method == zipfile.ZIP_STORED
        if magic == ZIP_MAGIC and (not stored or (flags | info.flag_bits) & _ENCRYPTED):
            raise InputError(
                f"{self.path} has entry {info.filename!r:.100} compressed or encrypted",
                "entries that are stored as they are, as torch.save does",
                "unpack it and pack it again without compression",
            )
        start += name_size + extra_size
        if magic != ZIP_MAGIC or start + info.file_size > len(self._map):
            raise self._damaged(f"has entry {info.filename!r:.100} outside the file")
        if info.compress_size != info.file_size:
            raise self._damaged(f"gives entry {info.filename!r:.100} two sizes")
        return Record(start, info.file_size, info.CRC if checked else None)

    # --- legacy ------------------------------------------------------------------------------

    def _open_legacy(self) -> None:
        self.software = "PyTorch, legacy container (the only one before torch 1.6)"
        source = _Window(self._map, 0, len(self._map))
        self._unpickle(source)  # the magic number
        protocol, _ = self._unpickle(source)
        if protocol != LEGACY_PROTOCOL:
            raise self._damaged("is no protocol 1001 of torch.save")
        system, _ = self._unpickle(source)
        if not isinstance(system, dict) or system.get("little_endian") is not True:
            raise self._wrong_order()
        self.root, storages = self._unpickle(source)
        keys, _ = self._unpickle(source)
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise self._damaged("has no list of storages")
        if len(keys) != len(storages) or set(keys) != storages.keys():
            raise self._damaged("lists other storages than its pickle names")
        at = source.tell()
        for key in keys:
            storage = storages[key]
            start = at + 8
            size = storage.size * storage.itemsize
            if start + size > len(self._map):
                raise self._damaged(f"ends within storage {key[:80]!r}")
            if int.from_bytes(self._map[at:start], "little") != storage.size:
                raise self._damaged(f"gives storage {key[:80]!r} two sizes")
            self._records[key] = Record(start, size, None)
            at = start + size

    def _wrong_order(self) -> InputError:
        return InputError(
            f"{self.path} was written by a machine of another byte order",
            "little-endian numbers",
            "load and save it by torch on a little-endian machine",
        )

    # --- numbers -----------------------------------------------------------------------------

    def read(self, name: str, tensor: TensorRecord) -> Tensor:
        """Read a tensor.

        Args:
            name: Its name, for errors.
            tensor: A record from `root`, of one of `DTYPES`.

        Returns:
            The tensor, in the mapped file where the numbers lie at a multiple of their size, as
            they always do in a zip container, and a copy where they do not.

        Raises:
            InputError: The storage's checksum is wrong.
        """
        dtype, storage = DTYPES[tensor.dtype], tensor.storage
        if not tensor.span:
            return torch.empty(tensor.shape, dtype=dtype)
        record = self._records[storage.key]
        if storage.key not in self._checked:
            self._check(f"tensor {name!r:.200}", record)
            self._checked.add(storage.key)
        first = record.start + storage.start * storage.itemsize + tensor.offset * dtype.itemsize
        numbers = tensor_at(self._map, first, (tensor.span,), tensor.dtype)
        return numbers.as_strided(tensor.shape, tensor.strides)

    def _bytes(self, what: str, record: Record) -> bytes:
        self._check(what, record)
        return self._map[record.start : record.start + record.size]

    def _check(self, what: str, record: Record) -> None:
        if record.crc is None:
            return
        with memoryview(self._map) as whole, whole[record.start :][: record.size] as content:
            if zlib.crc32(content) != record.crc:
                raise self._damaged(f"has a wrong crc32 in {what}")


class _Window:
    """A part of the mapped file as a stream that a pickle is read from."""

    def __init__(self, data: mmap.mmap, start: int, end: int) -> None:
        self._data = data
        self._at = start
        self._end = end

    def read(self, size: int, /) -> bytes:
        start, self._at = self._at, min(self._at + size, self._end)
        return self._data[start : self._at]

    def readline(self) -> bytes:
        limit = min(self._end, self._at + _MAX_LINE)
        end = self._data.find(b"\n", self._at, limit)
        return self.read((limit if end < 0 else end + 1) - self._at)

    def tell(self) -> int:
        return self._at


def is_torch(path: Path) -> bool:
    """Whether a file is one that `torch.save` wrote, by its first bytes and its zip directory."""
    kind = _kind(read_at(path, 0, 512))
    if kind != "zip":
        return kind is not None
    return any(
        info.filename.count("/") == 1 and info.filename.endswith("/data.pkl")
        for info in _zip_infos(path) or ()
    )


def _kind(head: bytes) -> str | None:
    if head.startswith(ZIP_MAGIC):
        return "zip"
    if LEGACY_MAGIC in head[:32]:
        return "legacy"
    is_tar = head[_TAR_MAGIC_AT:].startswith(b"ustar")
    return "tar" if is_tar and head[:100].rstrip(b"\0") in _TAR_MEMBERS else None


def _zip_infos(path: Path) -> list[zipfile.ZipInfo] | None:
    """The entries of a zip file; None where it has no directory that can be read."""
    # What zipfile raises on damaged bytes depends on the byte.
    errors = (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OSError)
    with contextlib.suppress(*errors), zipfile.ZipFile(path) as archive:
        return archive.infolist()
    return None
