"""Flax weights: a `flax_model.msgpack`, byte for byte as flax.serialization writes it.

MessagePack's own library packs whole values, and would hold a tensor four times on its way. Here
the heads are written by themselves, and the numbers go straight from the tensor into the file.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from hf_bert_impl.errors import InputError

from ..readers.flax import ARRAY, CHUNKED
from ..tensors import TensorInfo
from .checked import Read, check_unicode, read_announced

#: Larger arrays are cut into flat pieces of so many bytes; MessagePack ends at 4 GiB a value.
MAX_PIECE_BYTES = 1 << 30


def write_flax(path: Path, tensors: Mapping[str, TensorInfo], read: Read) -> tuple[Path, ...]:
    """The `Writer` of Flax: each "/" in a name starts an inner table."""
    tree = _tree(tensors)
    with path.open("wb") as file:
        _write_table(file, tree, read)
    return (path,)


def _tree(tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, info in tensors.items():
        check_unicode(name)
        *way, last = name.split("/")
        table = tree
        for key in way:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                break
        if not isinstance(table, dict) or last in table:
            raise InputError(
                f"{name!r} begins with another tensor's whole name, or is one's beginning",
                "names that are leaves of one tree",
                "rename one of them",
            )
        table[last] = info
    return tree


def _write_table(file: IO[bytes], tree: Mapping[str, Any], read: Read) -> None:
    file.write(_table(len(tree)))
    for key, value in tree.items():
        file.write(_text(key))
        if isinstance(value, dict):
            _write_table(file, value, read)
        else:
            _write_array(file, value, read)


def _write_array(file: IO[bytes], info: TensorInfo, read: Read) -> None:
    flat = read_announced(info, read).contiguous().reshape(-1)
    if flat.numel() * flat.element_size() <= MAX_PIECE_BYTES:
        _write_piece(file, info.shape, info.dtype, flat)
        return
    pieces = flat.split(max(1, MAX_PIECE_BYTES // flat.element_size()))
    file.write(_table(3) + _text(CHUNKED) + b"\xc3" + _text("shape") + _table(len(info.shape)))
    for place, size in enumerate(info.shape):
        file.write(_text(str(place)) + _number(size))
    file.write(_text("chunks") + _table(len(pieces)))
    for place, piece in enumerate(pieces):
        file.write(_text(str(place)))
        _write_piece(file, piece.shape, info.dtype, piece)


def _write_piece(file: IO[bytes], shape: tuple[int, ...], dtype: str, flat: Tensor) -> None:
    size = flat.numel() * flat.element_size()
    head = b"\x93" + _head(len(shape), (0x90, 15), (None, 0xDC, 0xDD))
    head += b"".join(map(_number, shape)) + _text(dtype) + _head(size, None, (0xC4, 0xC5, 0xC6))
    whole = len(head) + size
    if whole in (1, 2, 4, 8, 16):
        file.write(bytes((0xD3 + whole.bit_length(), ARRAY)))
    else:
        file.write(_head(whole, None, (0xC7, 0xC8, 0xC9)) + bytes((ARRAY,)))
    file.write(head)
    file.write(flat.view(torch.uint8).numpy().data)


# The heads of MessagePack, each in its shortest form


def _head(count: int, short: tuple[int, int] | None, firsts: tuple[int | None, int, int]) -> bytes:
    """The head of a value with a length: in its first byte, or in 1, 2 or 4 bytes after it."""
    if short and count <= short[1]:
        return bytes((short[0] | count,))
    one, two, four = firsts
    if one is not None and count < 1 << 8:
        return struct.pack(">BB", one, count)
    return struct.pack(">BH", two, count) if count < 1 << 16 else struct.pack(">BI", four, count)


def _table(count: int) -> bytes:
    return _head(count, (0x80, 15), (None, 0xDE, 0xDF))


def _text(text: str) -> bytes:
    content = text.encode()
    return _head(len(content), (0xA0, 31), (0xD9, 0xDA, 0xDB)) + content


def _number(number: int) -> bytes:
    if number < 1 << 7:
        return bytes((number,))
    for first, form in ((0xCC, "B"), (0xCD, "H"), (0xCE, "I")):
        if number < 1 << 8 * struct.calcsize(form):
            return struct.pack(f">B{form}", first, number)
    return struct.pack(">BQ", 0xCF, number)
