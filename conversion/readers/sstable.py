"""LevelDB's table, a file of sorted keys with a value each: TensorFlow's `.index` is one.

Blocks of entries follow one another, each with five bytes behind it: how it is compressed, and a
masked crc32c. The last block lists the others, and a footer of 48 bytes says where it lies:
https://github.com/google/leveldb/blob/main/doc/table_format.md. TensorFlow's tables are the same
but for a block size of 256 KiB (tensorflow/core/lib/io/table_options.h). Nothing smaller than
TensorFlow or LevelDB itself reads them; here a table can take no more memory than its size allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hf_bert_impl.extras import require

from .mapped import read_at
from .protobuf import Damaged, read_varint

MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
FOOTER_SIZE = 48
TRAILER_SIZE = 5
PLAIN, SNAPPY = 0, 1
#: A whole key stands at every so many entries; the others leave out what they share with the last.
RESTART_INTERVAL = 16
#: Three bytes of snappy stand for 64 at most.
_SNAPPY_RATIO = 22
_PURPOSE = "a TensorFlow checkpoint"


def masked_crc32c(data: bytes | np.ndarray) -> int:
    """The checksum that stands beside bytes in LevelDB's and TensorFlow's files.

    Args:
        data: Bytes, or an array of uint8, which is not copied.

    Returns:
        An unsigned number of 32 bits.

    Raises:
        ValueError: google-crc32c is not installed.
    """
    crc = require("google_crc32c", "convert", _PURPOSE).value(data)
    # Masked, so that a checksum over bytes that hold a checksum stays a good one.
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def is_table(path: Path) -> bool:
    """Whether a file ends with a table's magic number; False for one that cannot be read."""
    return read_at(path, -FOOTER_SIZE, FOOTER_SIZE).endswith(MAGIC)


def read_table(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Read a table from front to back, one block in memory at a time.

    Yields:
        Keys, strictly increasing, with their values.

    Raises:
        Damaged: A checksum is wrong, something lies outside the file, or keys are out of order.
        ValueError: A library that the file needs is not installed.
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
            # In the order of the file and apart from one another, as every writer lays them. A
            # list that named one block again and again would cost its square.
            if offset < free:
                raise Damaged(f"its block at byte {offset} lies within another")
            free = offset + length + TRAILER_SIZE
            for key, content in _entries(_read_block(file, offset, length, index_at)):
                if last is not None and key <= last:
                    raise Damaged(f"the key {key!r} follows {last!r}")
                last = key
                yield key, content


def _read_block(file: BinaryIO, offset: int, length: int, end: int) -> bytes:
    if offset + length + TRAILER_SIZE > end:
        raise Damaged(f"its block at byte {offset} has {length} bytes, beyond byte {end}")
    file.seek(offset)
    stored = file.read(length + TRAILER_SIZE)
    checksum = masked_crc32c(stored[: length + 1])
    if checksum != int.from_bytes(stored[length + 1 :], "little"):
        raise Damaged(f"the checksum of its block at byte {offset} is wrong")
    if stored[length] == PLAIN:
        return stored[:length]
    if stored[length] != SNAPPY:
        raise Damaged(f"its block at byte {offset} is compressed by method {stored[length]}")
    cramjam = require("cramjam", "convert", _PURPOSE)
    # The stored length may be any number, so it is checked before memory is allocated.
    if cramjam.snappy.decompress_raw_len(stored[:length]) > _SNAPPY_RATIO * length:
        raise Damaged(f"its block at byte {offset} claims too great a length")
    return bytes(cramjam.snappy.decompress_raw(stored[:length]))


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    # The restart points at the end serve a search; whoever reads all of it needs only their number.
    end = len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
    if end < 0:
        raise Damaged("a block is shorter than the list at its end")
    position = 0
    key = b""
    key_bytes = 0
    while position < end:
        shared, position = read_varint(block, position, end)
        unshared, position = read_varint(block, position, end)
        size, position = read_varint(block, position, end)
        if shared > len(key) or unshared + size > end - position:
            raise Damaged("an entry of a block is longer than the block")
        key = key[:shared] + block[position : position + unshared]
        position += unshared
        # Each entry can repeat the key before it, so a small file could fill the memory.
        key_bytes += len(key)
        if key_bytes > RESTART_INTERVAL * len(block):
            raise Damaged("the keys of a block are too long for its size")
        yield key, block[position : position + size]
        position += size
