"""TensorFlow's tensor bundles, written to be damaged."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hf_bert_impl.conversion.readers import sstable
from hf_bert_impl.conversion.readers.protobuf import BYTES, VARINT


def varint(value: int) -> bytes:
    """The bytes of an unsigned number, as `read_varint` reads them."""
    content = bytearray()
    while value >= 0x80:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    content.append(value)
    return bytes(content)


def field(number: int, value: int | bytes) -> bytes:
    """An unsigned number, and nothing for 0, the default; or a string or a message."""
    if isinstance(value, bytes):
        return varint(number << 3 | BYTES) + varint(len(value)) + value
    return varint(number << 3 | VARINT) + varint(value) if value else b""


def block(*entries: tuple[int, bytes, bytes]) -> bytes:
    """Entries as (bytes shared with the key before, rest of the key, value)."""
    content = b"".join(
        varint(shared) + varint(len(rest)) + varint(len(value)) + rest + value
        for shared, rest, value in entries
    )
    return content + bytes(4) + (1).to_bytes(4, "little")  # one restart, at the start


def table(
    file: Path,
    *blocks: bytes,
    kind: int = sstable.PLAIN,
    handles: list[tuple[int, int]] | None = None,
) -> Path:
    """A table of given blocks with good checksums; `handles` replaces the list of blocks."""
    content = b""
    places = []
    for one in blocks:
        places.append((len(content), len(one)))
        content += stored(one, kind)
    listed = [varint(a) + varint(b) for a, b in (places if handles is None else handles)]
    index = block(*((0, b"%03d" % number, handle) for number, handle in enumerate(listed)))
    footer = varint(0) + varint(0) + varint(len(content)) + varint(len(index))
    content += stored(index, sstable.PLAIN)
    file.write_bytes(content + footer.ljust(40, b"\0") + sstable.MAGIC)
    return file.with_suffix("")


def stored(content: bytes, kind: int) -> bytes:
    content += bytes([kind])
    return content + sstable.masked_crc32c(content).to_bytes(4, "little")


def write_table(path: Path, entries: Iterable[tuple[bytes, bytes]]) -> None:
    """A table of one block."""
    table(path, block(*((0, key, value) for key, value in entries)))
