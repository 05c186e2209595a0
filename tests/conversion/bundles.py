"""TensorFlow's tensor bundles, written to be damaged."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from hf_bert_impl.conversion.readers import sstable
from hf_bert_impl.conversion.readers.protobuf import BYTES, FIXED32, VARINT

VERSION = 1


def varint(value: int) -> bytes:
    """The bytes of an unsigned number, as `read_varint` reads them."""
    content = bytearray()
    while value >= 0x80:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    content.append(value)
    return bytes(content)


def number_field(number: int, value: int) -> bytes:
    """An unsigned number as a field; nothing for 0, which is what a missing field means."""
    return varint(number << 3 | VARINT) + varint(value) if value else b""


def fixed32_field(number: int, value: int) -> bytes:
    """A number of four bytes as a field; nothing for 0."""
    return varint(number << 3 | FIXED32) + value.to_bytes(4, "little") if value else b""


def bytes_field(number: int, value: bytes) -> bytes:
    """A string or a message as a field; an empty one is written too."""
    return varint(number << 3 | BYTES) + varint(len(value)) + value


def write_header() -> bytes:
    """The record under the empty key of a bundle with one data file."""
    return number_field(1, 1) + bytes_field(3, number_field(1, VERSION))


def write_table(
    path: Path, entries: Iterable[tuple[bytes, bytes]], block_size: int = 1 << 18
) -> None:
    """Write a table as TensorFlow does, byte for byte, without compression.

    Args:
        path: The file; one that exists is replaced.
        entries: Keys, strictly increasing, with their values.

    Raises:
        ValueError: google-crc32c is not installed.
        OSError: The file cannot be written.
    """
    with path.open("wb") as file:
        index = BlockBuilder(restart_interval=1)
        block = BlockBuilder(sstable.RESTART_INTERVAL)
        for key, value in entries:
            if block.size >= block_size:
                index.add(_between(block.last, key), write_block(file, block))
                block = BlockBuilder(sstable.RESTART_INTERVAL)
            block.add(key, value)
        index.add(_between(block.last, b"\xff"), write_block(file, block))
        footer = write_block(file, BlockBuilder(sstable.RESTART_INTERVAL))  # no metadata
        footer += write_block(file, index)
        file.write(footer.ljust(sstable.FOOTER_SIZE - len(sstable.MAGIC), b"\0") + sstable.MAGIC)


def write_block(file: BinaryIO, block: BlockBuilder) -> bytes:
    offset = file.tell()
    content = block.finish() + bytes([sstable.PLAIN])
    file.write(content + sstable.masked_crc32c(content).to_bytes(4, "little"))
    return varint(offset) + varint(len(content) - 1)


def _between(last: bytes, following: bytes) -> bytes:
    """A short key that is not below `last` and, where that can be, below `following`."""
    shared = _shared(last, following)
    if shared < min(len(last), len(following)) and last[shared] + 1 < following[shared]:
        return last[:shared] + bytes([last[shared] + 1])
    return last


def _shared(one: bytes, other: bytes) -> int:
    """How many bytes are the same in front."""
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return position
    return min(len(one), len(other))


class BlockBuilder:
    def __init__(self, restart_interval: int) -> None:
        self.last = b""
        self._interval = restart_interval
        self._content = bytearray()
        self._restarts = [0]
        self._since_restart = 0

    @property
    def size(self) -> int:
        return len(self._content) + 4 * len(self._restarts) + 4

    def add(self, key: bytes, value: bytes) -> None:
        shared = 0
        if self._since_restart < self._interval:
            shared = _shared(self.last, key)
        else:
            self._restarts.append(len(self._content))
            self._since_restart = 0
        self._content += varint(shared) + varint(len(key) - shared) + varint(len(value))
        self._content += key[shared:] + value
        self.last = key
        self._since_restart += 1

    def finish(self) -> bytes:
        numbers = [*self._restarts, len(self._restarts)]
        return bytes(self._content) + b"".join(n.to_bytes(4, "little") for n in numbers)
