"""LevelDB's table of sorted keys with a value each, such as TensorFlow's `.index`.

Each block of entries is followed by five bytes: its compression, and a masked crc32c. The last
block lists the others, and a footer of 48 bytes has its position:
https://github.com/google/leveldb/blob/main/doc/table_format.md. TensorFlow's tables have blocks of
256 KiB (tensorflow/core/lib/io/table_options.h); its checkpoints do not compress them
(tensorflow/core/util/tensor_bundle/tensor_bundle.cc). No library smaller than TensorFlow or LevelDB
reads them. The memory of a table is bounded by its size.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hf_bert_impl.extras import require

from .mapped import read_at
from .protobuf import read_varint

MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
FOOTER_SIZE = 48
TRAILER_SIZE = 5
PLAIN = 0
#: Every 16th entry has a whole key; the others omit the bytes that they share with the last.
RESTART_INTERVAL = 16


def masked_crc32c(data: bytes | np.ndarray) -> int:
    """The checksum of bytes in LevelDB's and TensorFlow's files.

    Args:
        data: Bytes, or an array of uint8, which is not copied.

    Returns:
        An unsigned number of 32 bits.

    Raises:
        ValueError: google-crc32c is not installed.
    """
    crc = require("google_crc32c", "convert", "a TensorFlow checkpoint").value(data)
    # Masked, because checksums of bytes that contain checksums are weak.
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def is_table(path: Path) -> bool:
    """Whether a file ends with a table's magic number; False if it cannot be read."""
    return read_at(path, -FOOTER_SIZE, FOOTER_SIZE).endswith(MAGIC)


def read_table(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Read a table from front to back, one block in memory at a time.

    Yields:
        Keys, strictly increasing, with their values.

    Raises:
        ValueError: A checksum is wrong, a position is outside the file, keys are out of order, or
            google-crc32c is not installed.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        footer_at = max(0, size - FOOTER_SIZE)
        file.seek(footer_at)
        footer = file.read()
        position = 0
        handle = []  # offset and size of the block of metadata, and of the list of blocks
        for _ in range(4):
            number, position = read_varint(footer, position, FOOTER_SIZE - len(MAGIC))
            handle.append(number)
        index_at = handle[2]
        last: bytes | None = None
        free = 0
        for _, value in _entries(_read_block(file, index_at, handle[3], footer_at)):
            offset, position = read_varint(value, 0, len(value))
            length, _ = read_varint(value, position, len(value))
            # Blocks are in order and apart: a list that repeats one block would take quadratic
            # time.
            if offset < free:
                raise ValueError(f"its block at byte {offset} overlaps another")
            free = offset + length + TRAILER_SIZE
            for key, content in _entries(_read_block(file, offset, length, index_at)):
                if last is not None and key <= last:
                    raise ValueError(f"the key {key!r} follows {last!r}")
                last = key
                yield key, content


def _read_block(file: BinaryIO, offset: int, length: int, end: int) -> bytes:
    if offset + length + TRAILER_SIZE > end:
        raise ValueError(f"its block at byte {offset} has {length} bytes, beyond byte {end}")
    file.seek(offset)
    stored = file.read(length + TRAILER_SIZE)
    checksum = masked_crc32c(stored[: length + 1])
    if checksum != int.from_bytes(stored[length + 1 :], "little"):
        raise ValueError(f"the checksum of its block at byte {offset} is wrong")
    if stored[length] != PLAIN:
        raise ValueError(f"its block at byte {offset} is compressed by method {stored[length]}")
    return stored[:length]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    # The restart points at the end are for searching; here only their number is needed.
    end = len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
    if end < 0:
        raise ValueError("a block is shorter than the list at its end")
    position = 0
    key = b""
    key_bytes = 0
    while position < end:
        shared, position = read_varint(block, position, end)
        unshared, position = read_varint(block, position, end)
        size, position = read_varint(block, position, end)
        if shared > len(key) or unshared + size > end - position:
            raise ValueError("an entry of a block is longer than the block")
        key = key[:shared] + block[position : position + unshared]
        position += unshared
        # Each entry can repeat the previous key, so a small file could fill the memory.
        key_bytes += len(key)
        if key_bytes > RESTART_INTERVAL * len(block):
            raise ValueError("the keys of a block are too long for its size")
        yield key, block[position : position + size]
        position += size
