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
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from ..tensors import Checkpoint, Unread, known
from .mapped import map_file, most_bytes, read_at, reading
from .pickles import InertUnpickler, Instance, is_key

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
        head = read_at(path, 0, 32)
        if head.startswith(_ZIP_MAGIC):
            root = _read_zip(path)
            software = "PyTorch, zip container (torch 1.6 or later)"
        elif _LEGACY_MAGIC in head:
            root = _read_legacy(map_file(path), file)
            software = "PyTorch, legacy container (the only one before torch 1.6)"
        else:
            if head.startswith(_PICKLE) or read_at(path, -1, 1) == _PICKLE_END:
                InertUnpickler(file).load()  # a plain pickle: code in it is reported first
            raise ValueError("it is no file of torch.save, or one of torch 0.1")
        if not isinstance(root, dict | Instance):
            raise ValueError("it holds neither a state dict nor a module; save its state_dict()")
        tensors: dict[str, Tensor | Unread] = {}
        attributes: dict[str, int | float | str] = {}
        for name, value in _Walk().leaves(root, "", 0):
            if not isinstance(value, Tensor):
                attributes[name] = value
            elif name in tensors:
                raise ValueError(f"it has tensor {name!r} twice")
            else:
                tensors[name] = known(value)
        count = sum(item.numel() for item in tensors.values() if isinstance(item, Tensor))
        if count * 8 > most_bytes(path):
            raise ValueError("its tensors repeat the same few numbers many times")
    return Checkpoint(tensors, software, attributes)


def _read_zip(path: Path) -> Any:
    data = map_file(path)
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

    def storage_of(key: str, dtype: torch.dtype, size: int) -> Tensor:
        return _numbers(content(f"{folder}data/{key}"), dtype, size)

    pickles = [name for name in entries if _is_pickle(name)]
    if len(pickles) != 1:
        raise ValueError(f"it holds {len(pickles)} pickles `<name>/data.pkl`")
    folder = pickles[0].removesuffix("data.pkl")
    if f"{folder}constants.pkl" in entries:
        raise ValueError("it is a TorchScript program; save its state_dict() by torch.save")
    order = f"{folder}byteorder"
    if order in entries and content(order).numpy().tobytes() != b"little":
        raise ValueError(_OTHER_ORDER)
    return InertUnpickler(io.BytesIO(content(pickles[0]).numpy().data), storage_of).load()


def _read_legacy(data: Tensor, file: IO[bytes]) -> Any:
    InertUnpickler(file).load()  # the magic number
    if InertUnpickler(file).load() != _LEGACY_PROTOCOL:
        raise ValueError("it is no protocol 1001 of torch.save")
    system = InertUnpickler(file).load()
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise ValueError(_OTHER_ORDER)
    start = file.tell()
    claimed: dict[str, Tensor] = {}

    def claim(key: str, dtype: torch.dtype, size: int) -> Tensor:
        storage = torch.empty(size, dtype=dtype, device="meta")
        return claimed.setdefault(key, storage)

    # The storages follow the pickle, so it is read twice: for their sizes, then with their numbers.
    InertUnpickler(file, claim).load()
    keys = InertUnpickler(file).load()
    if not isinstance(keys, list) or sorted(keys) != sorted(claimed):
        raise ValueError("its list of storages does not match its pickle")
    contents, at = {}, file.tell()
    for key in keys:
        if int.from_bytes(data[at : at + 8].numpy().tobytes(), "little") != len(claimed[key]):
            raise ValueError(f"it gives storage {key[:80]!r} two sizes")
        contents[key] = data[at + 8 : at + 8 + claimed[key].nbytes]
        at += 8 + claimed[key].nbytes
    file.seek(start)
    return InertUnpickler(file, lambda key, *kind: _numbers(contents[key], *kind)).load()


def _numbers(content: Tensor, dtype: torch.dtype, size: int) -> Tensor:
    """The numbers of a storage, as a view of its bytes where possible."""
    if len(content) != size * dtype.itemsize:
        raise ValueError(f"it names {size * dtype.itemsize} bytes in an entry of {len(content)}")
    if content.storage_offset() % dtype.itemsize:
        content = content.clone()
    return content.view(dtype)


class _Walk:
    """Tensors and plain attributes in a pickled value, by dotted name."""

    def __init__(self) -> None:
        self._characters = 0

    def leaves(self, value: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
        """Names and values; modules in the order of `torch.nn.Module.state_dict`."""
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, dict):
            for _, inner, item in self._named(value, name, depth):
                yield from self.leaves(item, inner, depth + 1)
        elif isinstance(value, Instance) and isinstance(value.state.get("_modules"), dict):
            state = value.state
            for _, inner, item in self._named(state, name, depth):
                if isinstance(item, int | float | str):
                    yield inner, item
            unsaved = state.get("_non_persistent_buffers_set")  # since torch 1.6
            unsaved = {*filter(is_key, unsaved)} if isinstance(unsaved, list) else {}
            for part in ("_parameters", "_buffers", "_modules"):
                for key, inner, item in self._named(state.get(part), name, depth):
                    if part != "_buffers" or key not in unsaved:
                        yield from self.leaves(item, inner, depth + 1)

    def _named(self, items: Any, prefix: str, depth: int) -> Iterator[tuple[Any, str, Any]]:
        """Keys, dotted names and values; refuses too many, before they use memory."""
        items = items if isinstance(items, dict) else {}
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
