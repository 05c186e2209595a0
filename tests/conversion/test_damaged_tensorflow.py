"""TensorFlow's index, written as TensorFlow does not: each is refused in one line."""

import numpy as np
import pytest

from hf_bert_impl.conversion.readers import sstable
from hf_bert_impl.conversion.readers.protobuf import BYTES, FIXED32, VARINT
from tests.conversion.cases import refuse


def varint(value):
    """The bytes of an unsigned number, as `read_varint` reads them."""
    content = bytearray()
    while value >= 0x80:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    content.append(value)
    return bytes(content)


def field(number, value):
    """An unsigned number, and nothing for 0, the default; or a string or a message."""
    if isinstance(value, bytes):
        return varint(number << 3 | BYTES) + varint(len(value)) + value
    return varint(number << 3 | VARINT) + varint(value) if value else b""


def block(*entries):
    """Entries as (bytes shared with the key before, rest of the key, value)."""
    content = b"".join(
        varint(shared) + varint(len(rest)) + varint(len(value)) + rest + value
        for shared, rest, value in entries
    )
    return content + bytes(4) + (1).to_bytes(4, "little")  # one restart, at the start


def stored(content, kind):
    content += bytes([kind])
    return content + sstable.masked_crc32c(content).to_bytes(4, "little")


def table(*blocks, kind=sstable.PLAIN, handles=None):
    """A table of given blocks with good checksums; `handles` replaces the list of blocks."""
    content, places = b"", []
    for one in blocks:
        places.append((len(content), len(one)))
        content += stored(one, kind)
    listed = [varint(a) + varint(b) for a, b in (places if handles is None else handles)]
    index = block(*((0, b"%03d" % number, handle) for number, handle in enumerate(listed)))
    footer = varint(0) + varint(0) + varint(len(content)) + varint(len(index))
    content += stored(index, sstable.PLAIN)
    return content + footer.ljust(40, b"\0") + sstable.MAGIC


MINUS = 1 << 64  # minus n is this less n in a varint
HEADER = field(1, 1) + field(3, field(1, 1))
DATA = bytes(range(48))


def shape_field(*sizes):
    return field(2, b"".join(field(2, field(1, size)) for size in sizes))


def record(*sizes, offset=0, size=None):
    """An entry of float32 with the right checksum; negative numbers as two's complement."""
    size = 4 * int(np.prod(sizes)) if size is None else size
    return (
        field(1, 1)
        + shape_field(*sizes)
        + field(4, offset % MINUS)
        + field(5, size % MINUS)
        + varint(6 << 3 | FIXED32)
        + sstable.masked_crc32c(DATA[offset : offset + size]).to_bytes(4, "little")
    )


def bundle(*records, key=b"a", header=HEADER):
    """A table with a header, by default a good one, and records under the same key."""
    return table(block((0, b"", header), *((0, key, content) for content in records)))


ENTRIES = block((0, b"", HEADER), (0, b"a", record(3)))
#: Keys that share 9999 bytes with the one before.
AFTER = [(9999, bytes(n), record()) for n in range(1, 30)]
VERSION = field(3, field(1, 3) + field(2, 2))
DAMAGES = {
    "no header": (table(block((0, b"a", record(3)))), "first record is not a header"),
    "no data files": (bundle(header=b""), "claims 0 data files"),
    "big-endian": (bundle(header=field(1, 1) + field(2, 1)), "big-endian machine"),
    "newer": (bundle(header=field(1, 1) + VERSION), "readers of version 2, later than 1"),
    "V1": (bundle(header=field(1, b"")), "first format .V1.; save it again by tf.train"),
    "twice": (bundle(record(3), record(3)), "the key b'a' follows b'a'"),
    "not UTF-8": (bundle(record(3), key=b"\xff"), "is no name"),
    "huge": (bundle(shape_field(1 << 40, 1 << 40)), "the shape"),
    "rank": (bundle(field(2, field(3, 1))), "dimensions is unknown"),
    "size": (bundle(record(3, size=11)), "of 12 bytes has 11 bytes"),
    "beyond": (bundle(record(3, offset=40)), "12 bytes from byte 40"),
    "shared": (
        table(block((0, b"", HEADER), (0, b"a", record(12)), (0, b"b", record(12)))),
        "96 bytes, more than all",
    ),
    "before": (bundle(record(3, offset=-4)), "12 bytes from byte -4"),
    "field": (bundle(b"\x12" + varint(MINUS - 1)), "field 2 .* is truncated"),
    "number": (bundle(b"\x08\x80"), "a number is truncated"),
    "64 bits": (bundle(b"\x08" + b"\xff" * 9 + b"\x7f"), "more than 64 bits"),
    "wire type": (bundle(b"\x0b"), "field 1 .* has the wire type 3"),
    "no end": (table(b""), "shorter than the list"),
    "long value": (table(varint(0) * 2 + varint(1 << 62) + block()), "longer than the block"),
    "long keys": (table(block((0, b"", HEADER), (0, b"k" * 9999, record()), *AFTER)), "too long"),
    "far block": (table(ENTRIES, handles=[(MINUS - 1, 0)]), "beyond byte"),
    "block twice": (table(ENTRIES, handles=[(0, len(ENTRIES))] * 2), "byte 0 overlaps another"),
    "compressed": (table(ENTRIES, kind=1), "compressed by method 1"),
}


@pytest.mark.parametrize(("content", "match"), DAMAGES.values(), ids=DAMAGES)
def test_damage(content, match, tmp_path):
    (tmp_path / "bad.data-00000-of-00001").write_bytes(DATA)
    refuse("tf1", tmp_path / "bad", match, content)


def test_an_index_of_several_blocks(tmp_path):
    records = [(f"layer_{i:04}/a_rather_long_name".encode(), b"x" * i) for i in range(999)]
    parts = [records[start : start + 100] for start in range(0, 999, 100)]
    content = table(*(block(*((0, *record) for record in part)) for part in parts))
    (tmp_path / "m.index").write_bytes(content)
    assert list(sstable.read_table(tmp_path / "m.index")) == records
