"""PyTorch's checkpoints: state dicts and pickled modules, of any torch since 0.4.

Since torch 1.6 `torch.save` writes a zip archive of stored entries, `<name>/data.pkl` and one
`<name>/data/<key>` per storage, each with its crc32 (caffe2/serialize/inline_container.cc). Before,
it was a stream without checksums (torch/serialization.py, `_legacy_save`). Three small pickles hold
a magic number, the protocol 1001 and facts on the machine. The pickle and a pickled list of keys
follow, and per key the number of elements (8 bytes) and the elements.

No code of a checkpoint is run: see `pickles`.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from ..tensors import Checkpoint, Unread, known
from .mapped import map_file, most_bytes, read_at, reading
from .pickles import InertUnpickler, Instance, Storage, Stored, is_key

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

#: The bytes of a storage.
BytesOf = Callable[[Storage], Tensor]


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
            root, bytes_of = _read_zip(data, path)
            software = "PyTorch, zip container (torch 1.6 or later)"
        elif _LEGACY_MAGIC in head:
            root, bytes_of = _read_legacy(data, file)
            software = "PyTorch, legacy container (the only one before torch 1.6)"
        else:
            if head.startswith(_PICKLE) or read_at(path, -1, 1) == _PICKLE_END:
                InertUnpickler(file).load()  # a plain pickle: code in it is reported first
            raise ValueError("it is no file of torch.save, or one of torch 0.1")
        if not isinstance(root, dict | Instance):
            raise ValueError("it holds neither a state dict nor a module; save its state_dict()")
        walk = _Walk(bytes_of)
        walk.visit(root, "", 0)
        views = [item for item in walk.tensors.values() if isinstance(item, Tensor)]
        if sum(view.numel() for view in views) * 8 > most_bytes(path):
            raise ValueError("its tensors repeat the same few numbers many times")
    return Checkpoint(walk.tensors, software, walk.attributes)


def _read_zip(data: Tensor, path: Path) -> tuple[Any, BytesOf]:
    with zipfile.ZipFile(path) as archive:
        entries = {info.filename: info for info in archive.infolist()}
        if len(entries) < len(archive.infolist()):
            raise ValueError("its zip directory has an entry twice")
        for name, info in entries.items():
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                raise ValueError(f"its entry {name!r:.200} is compressed or encrypted")
        if sum(info.file_size for info in entries.values()) > len(data):
            raise ValueError("its entries take more bytes than it has")
        # torch.serialization.set_crc32_options(False) writes zeros.
        is_summed = any(info.CRC for info in entries.values())
        if is_summed and (wrong := archive.testzip()):
            raise ValueError(f"it has a wrong crc32 in {wrong!r:.200}")

    def content(name: str) -> Tensor:
        if name not in entries:
            raise ValueError(f"it has no entry {name:.200}")
        # After a header, whose last numbers are the sizes of a name and a field before the content.
        at = entries[name].header_offset + 30
        name_low, name_high, field_low, field_high = data[at - 4 : at].tolist()
        at += name_low + field_low + 256 * (name_high + field_high)
        return data[at : at + entries[name].file_size]

    pickles = [name for name in entries if _is_pickle(name)]
    if len(pickles) != 1:
        raise ValueError(f"it holds {len(pickles)} pickles `<name>/data.pkl`")
    folder = pickles[0].removesuffix("data.pkl")
    if f"{folder}constants.pkl" in entries:
        raise ValueError("it is a TorchScript program; save its state_dict() by torch.save")
    order = f"{folder}byteorder"
    if order in entries and content(order).numpy().tobytes() != b"little":
        raise ValueError(_OTHER_ORDER)
    root = InertUnpickler(io.BytesIO(content(pickles[0]).numpy().data)).load()
    return root, lambda storage: content(f"{folder}data/{storage.key}")


def _read_legacy(data: Tensor, file: IO[bytes]) -> tuple[Any, BytesOf]:
    InertUnpickler(file).load()  # the magic number
    if InertUnpickler(file).load() != _LEGACY_PROTOCOL:
        raise ValueError("it is no protocol 1001 of torch.save")
    system = InertUnpickler(file).load()
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise ValueError(_OTHER_ORDER)
    unpickler = InertUnpickler(file)
    root, keys = unpickler.load(), InertUnpickler(file).load()
    if not isinstance(keys, list) or sorted(keys) != sorted(unpickler.storages):
        raise ValueError("its list of storages does not match its pickle")
    contents, at = {}, file.tell()
    for key in keys:
        storage = unpickler.storages[key]
        if int.from_bytes(data[at : at + 8].numpy().tobytes(), "little") != storage.size:
            raise ValueError(f"it gives storage {key[:80]!r} two sizes")
        end = at + 8 + storage.size * storage.dtype.itemsize
        contents[key] = data[at + 8 : end]
        at = end
    return root, lambda storage: contents[storage.key]


def _view(stored: Stored, bytes_of: BytesOf) -> Tensor | Unread:
    """A tensor of a storage. Its shape must not exceed the storage, even with strides of 0."""
    if stored.changes:
        return Unread((), "lazily conjugated or negated")
    storage, offset, shape, strides = stored.storage, stored.offset, stored.shape, stored.strides
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if min((offset, *shape, *strides)) < 0 or max(math.prod(shape), last + 1) > storage.size:
        raise ValueError(f"a tensor of shape {tuple(shape)} does not fit its storage")
    content, size = bytes_of(storage), storage.dtype.itemsize
    if len(content) != storage.size * size:
        raise ValueError(f"it names {storage.size * size} bytes in an entry of {len(content)}")
    if content.storage_offset() % size:
        content = content.clone()
    flat = content.view(storage.dtype)
    return flat.as_strided(shape, strides, flat.storage_offset() + offset)


class _Walk:
    """Collects the tensors and attributes of a pickled value by dotted name."""

    def __init__(self, bytes_of: BytesOf) -> None:
        self.tensors: dict[str, Tensor | Unread] = {}
        self.attributes: dict[str, int | float | bool | str] = {}
        self._bytes_of = bytes_of
        self._characters = 0

    def visit(self, value: Any, name: str, depth: int) -> None:
        if isinstance(value, dict):
            for _, inner, item in self._named(value, name, depth):
                self.visit(item, inner, depth + 1)
        elif isinstance(value, Instance) and isinstance(value.state.get("_modules"), dict):
            self._visit_module(value.state, name, depth)
        elif isinstance(value, Stored | Unread):
            tensor = _view(value, self._bytes_of) if isinstance(value, Stored) else value
            if name in self.tensors:
                raise ValueError(f"it has tensor {name!r} twice")
            if isinstance(tensor, Unread):
                raise ValueError(f"tensor {name!r} is {tensor.dtype}; save it as a dense one")
            self.tensors[name] = known(tensor)

    def _visit_module(self, state: dict[Any, Any], prefix: str, depth: int) -> None:
        """In the order of `torch.nn.Module.state_dict`: parameters, buffers, children."""
        for _, name, value in self._named(state, prefix, depth):
            if isinstance(value, int | float | str):
                self.attributes[name] = value
        unsaved = state.get("_non_persistent_buffers_set")  # since torch 1.6
        skipped = {key for key in unsaved if is_key(key)} if isinstance(unsaved, list) else set()
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
