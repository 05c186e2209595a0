"""PyTorch's checkpoints: state dicts and pickled modules, of any torch since 0.2.

Since torch 1.6 `torch.save` writes a zip archive of stored entries, `<name>/data.pkl` and one
`<name>/data/<key>` per storage, each with its crc32 (caffe2/serialize/inline_container.cc). Before,
it was a stream without checksums (torch/serialization.py, `_legacy_save`). Three small pickles hold
a magic number, the protocol 1001 and facts on the machine. The pickle and a pickled list of keys
follow, and per key the number of elements (8 bytes) and the elements.

No code of a checkpoint is run: see `pickles`.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from ..tensors import Checkpoint, Unread, known
from .mapped import map_file, most_bytes, read_at, reading
from .pickles import Instance, is_key, load_inert

#: 0x1950A86A20F9469CFC6C as a pickled int, in any protocol.
_LEGACY_MAGIC = bytes.fromhex("8a0a6cfc9c46f9206aa85019")
_LEGACY_PROTOCOL = 1001
_ZIP_MAGIC = b"PK\x03\x04"
#: The first byte of pickles since protocol 2, and the last of all.
_PICKLE, _PICKLE_END = b"\x80", b"."
_OTHER_ORDER = "it was written by a machine of another byte order"
#: Depth of containers: a module of BERT is seven deep, and a container in itself has no end.
_MAX_DEPTH = 64
_MAX_NAME = 1000
#: Characters of all names. A small pickle with shared dicts may have more names than fit in memory;
#: a vocabulary of 250 000 words has five million characters.
_MAX_CHARACTERS = 1 << 25
_NAME_OVERHEAD = 32


def read_torch(path: Path) -> Checkpoint:
    """Read a file of `torch.save`: `pytorch_model.bin`, `.pt`, `.pth`, codertimo's `.ep0`.

    Nested dicts are flattened to dotted names ("model.bert.pooler.dense.bias"), and so are the
    parameters and buffers of pickled modules, as in their `state_dict()`. Tied tensors have each of
    their names.

    Raises:
        InputError: The file cannot be read, is of another format, is damaged, or its pickle would
            run code.
    """
    with reading("PyTorch", path), path.open("rb") as file:
        data = map_file(path)
        head = read_at(path, 0, 32)
        if head.startswith(_ZIP_MAGIC):
            root = _read_zip(data, path)
            software = "PyTorch, zip container (torch 1.6 or later)"
        elif _LEGACY_MAGIC in head:
            root = _read_legacy(data, file)
            software = "PyTorch, legacy container (the only one before torch 1.6)"
        else:
            if head.startswith(_PICKLE) or read_at(path, -1, 1) == _PICKLE_END:
                load_inert(file)  # a plain pickle: code in it is reported first
            raise ValueError("it is no file of torch.save, or one of torch 0.1")
        if not isinstance(root, dict | Instance):
            raise ValueError("it holds neither a state dict nor a module; save its state_dict()")
        walk = _Walk()
        walk.visit(root, "", 0)
        views = [item for item in walk.tensors.values() if isinstance(item, Tensor)]
        if sum(view.numel() for view in views) * 8 > most_bytes(path):
            raise ValueError("its tensors repeat the same few numbers many times")
    return Checkpoint(walk.tensors, software, walk.attributes)


def _read_zip(data: Tensor, path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        entries = {info.filename: info for info in archive.infolist()}
        if len(entries) < len(archive.infolist()):
            raise ValueError("its zip directory has an entry twice")
    if sum(info.compress_size for info in entries.values()) > len(data):
        raise ValueError("its entries take more bytes than it has")
    # torch.serialization.set_crc32_options(False) writes zeros.
    is_summed = any(info.CRC for info in entries.values())
    contents = {name: _content(data, info, is_summed) for name, info in entries.items()}
    pickles = [name for name in entries if _is_pickle(name)]
    if len(pickles) != 1:
        raise ValueError(f"it holds {len(pickles)} pickles `<name>/data.pkl`")
    folder = pickles[0].removesuffix("data.pkl")
    if f"{folder}constants.pkl" in entries:
        raise ValueError("it is a TorchScript program; save its state_dict() by torch.save")
    order = contents.get(f"{folder}byteorder")
    if order is not None and order.numpy().tobytes() != b"little":
        raise ValueError(_OTHER_ORDER)

    def storage_of(key: str, dtype: torch.dtype, size: int) -> Tensor:
        name = f"{folder}data/{key}"
        if name not in contents:
            raise ValueError(f"it has no entry {name:.200}")
        content, claimed = contents[name], size * dtype.itemsize
        if len(content) != claimed:
            raise ValueError(f"it names {claimed} bytes in an entry of {len(content)}")
        return _flat(content, dtype)

    return load_inert(io.BytesIO(contents[pickles[0]].numpy().data), storage_of)[0]


def _content(data: Tensor, info: zipfile.ZipInfo, is_summed: bool) -> Tensor:
    """The bytes of an entry, whose checksum is compared."""
    at = info.header_offset
    header = data[at : at + 30].numpy().tobytes()  # its last numbers: two sizes of what follows
    start = (
        at + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:], "little")
    )
    content = data[start : start + info.file_size]
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        raise ValueError(f"its entry {info.filename!r:.200} is compressed or encrypted")
    whole = len(content) == info.file_size == info.compress_size
    if not whole or not header.startswith(_ZIP_MAGIC):
        raise ValueError(f"it ends within its entry {info.filename!r:.200}, or gives it two sizes")
    if is_summed and zlib.crc32(content.numpy().data) != info.CRC:
        raise ValueError(f"it has a wrong crc32 in {info.filename!r:.200}")
    return content


def _flat(content: Tensor, dtype: torch.dtype) -> Tensor:
    aligned = content.storage_offset() % dtype.itemsize == 0
    return (content if aligned else content.clone()).view(dtype)


def _read_legacy(data: Tensor, file: IO[bytes]) -> Any:
    load_inert(file)  # the magic number
    protocol, _ = load_inert(file)
    if protocol != _LEGACY_PROTOCOL:
        raise ValueError("it is no protocol 1001 of torch.save")
    system, _ = load_inert(file)
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise ValueError(_OTHER_ORDER)
    start = file.tell()
    _, storages = load_inert(file)
    keys, _ = load_inert(file)
    if not isinstance(keys, list) or sorted(keys) != sorted(storages):
        raise ValueError("its list of storages does not match its pickle")
    numbers, at = {}, file.tell()
    for key in keys:
        storage = storages[key]
        if int.from_bytes(data[at : at + 8].numpy().tobytes(), "little") != len(storage):
            raise ValueError(f"it gives storage {key[:80]!r} two sizes")
        content = data[at + 8 : at + 8 + storage.nbytes]
        if len(content) < storage.nbytes:
            raise ValueError(f"it ends within storage {key[:80]!r}")
        numbers[key] = _flat(content, storage.dtype)
        at += 8 + storage.nbytes
    # The numbers follow the pickle, so it is read twice.
    file.seek(start)
    return load_inert(file, lambda key, *_: numbers[key])[0]


class _Walk:
    """Collects the tensors and attributes of a pickled value by dotted name."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor | Unread] = {}
        self.attributes: dict[str, int | float | bool | str] = {}
        self._characters = 0

    def visit(self, value: Any, name: str, depth: int) -> None:
        if isinstance(value, dict):
            for _, inner, item in self._named(value, name, depth):
                self.visit(item, inner, depth + 1)
        elif isinstance(value, Instance) and isinstance(value.state.get("_modules"), dict):
            self._visit_module(value.state, name, depth)
        elif isinstance(value, Tensor | Unread):
            if name in self.tensors:
                raise ValueError(f"it has tensor {name!r} twice")
            if isinstance(value, Unread) and not value.shape:
                raise ValueError(f"tensor {name!r} is {value.dtype}; save it as a dense one")
            self.tensors[name] = known(value)

    def _visit_module(self, state: dict[Any, Any], prefix: str, depth: int) -> None:
        """In the order of `torch.nn.Module.state_dict`: parameters, buffers, children."""
        for key, name, value in self._named(state, prefix, depth):
            is_number = isinstance(value, float) or (isinstance(value, int) and is_key(value))
            if not str(key).startswith("_") and (is_number or isinstance(value, str)):
                self.attributes[name] = value
        unsaved = state.get("_non_persistent_buffers_set")  # since torch 1.6
        listed = unsaved if isinstance(unsaved, list) else []
        texts = dict.fromkeys(key for key in listed if isinstance(key, str))
        skipped = {key for key, *_ in self._named(texts, prefix, depth)}
        for part in ("_parameters", "_buffers", "_modules"):
            items = state.get(part)
            items = items if isinstance(items, dict) else {}
            for key, name, value in self._named(items, prefix, depth):
                # None: a bias that the module was made without
                if value is not None and not (part == "_buffers" and key in skipped):
                    self.visit(value, name, depth + 1)

    def _named(
        self, items: dict[Any, Any], prefix: str, depth: int
    ) -> Iterator[tuple[Any, str, Any]]:
        """Keys, dotted names and values; refuses too many, before they use memory."""
        self._characters += (len(items) + 1) * (len(prefix) + _NAME_OVERHEAD)
        if self._characters > _MAX_CHARACTERS or depth > _MAX_DEPTH:
            raise ValueError(f"it nests its containers without end, as in {prefix!r:.100}")
        for key, item in items.items():
            name = f"{prefix}.{key}" if prefix else str(key)
            if len(name) > _MAX_NAME or not name.isprintable():
                raise ValueError(f"it has the name {name!r:.100}")
            yield key, name, item


def is_torch(path: Path) -> bool:
    """Whether `torch.save` wrote a file, by its first bytes and its zip directory."""
    head = read_at(path, 0, 32)
    if not head.startswith(_ZIP_MAGIC):
        return _LEGACY_MAGIC in head
    try:
        with zipfile.ZipFile(path) as archive:
            return any(map(_is_pickle, archive.namelist()))
    except Exception:  # the type depends on the damaged byte
        return False


def _is_pickle(name: str) -> bool:
    return name.count("/") == 1 and name.endswith("/data.pkl")
