"""The records of TensorFlow's tensor bundles, from bytes.

BundleHeaderProto and BundleEntryProto of tensorflow/core/protobuf/tensor_bundle.proto, with
TensorShapeProto, TensorSliceProto and VersionDef of tensorflow/core/framework inside them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .mapped import byte_size
from .protobuf import Damaged, Message

#: DataType of tensorflow/core/framework/types.proto: those of `DTYPES`, and strings.
TF_DTYPES = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    7: "string",
    9: "int64",
    10: "bool",
    14: "bfloat16",
    19: "float16",
}
#: The version of the format; there has been no other.
VERSION = 1

#: A part of a partitioned variable: start and length in each dimension, (0, -1) for all of one.
Slice = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """What a bundle says about one tensor, about a part of one, or about one stored in parts."""

    dtype: str
    """A value of `TF_DTYPES`, or "DataType 77" for a number that is not in it."""
    shape: tuple[int, ...]
    shard: int
    """The number of its data file."""
    offset: int
    """The first of its bytes there."""
    size: int
    """How many bytes it has."""
    crc: int
    """Their masked crc32c."""
    slices: tuple[Slice, ...] = ()
    """Its parts, where it is stored in parts: each has an entry under `slice_key`."""


def read_header(record: bytes) -> tuple[int, int]:
    """Read the record under the empty key, the first one.

    Args:
        record: Its bytes.

    Returns:
        The number of data files, and the version of the format that it was written in.

    Raises:
        Damaged: It is no such record, or of another format, version or byte order.
    """
    header = Message(record)
    if header.contents(1):
        # SavedTensorSlices, the first record of the format before this one, of which all is in
        # one file, begins with a message.
        raise Damaged("it is of TensorFlow's first format (V1); save it by tf.train.Saver again")
    shards = header.number(1)
    version = oldest_reader = 0
    for numbers in header.messages(3):
        version, oldest_reader = numbers.number(1), numbers.number(2)
    if shards < 1:
        raise Damaged(f"it claims {shards} data files")
    if header.number(2):
        raise Damaged("it was written on a big-endian machine")
    if oldest_reader > VERSION:
        raise Damaged(f"it is for readers of version {oldest_reader} on, not {VERSION}")
    return shards, version


def read_entry(record: bytes) -> Entry:
    """Read the record of a tensor.

    Raises:
        Damaged: It is no such record, or one that no tensor can have.
    """
    entry = Message(record)
    shape = _shape(entry)
    dtype, offset, size = entry.number(1), entry.number(4), entry.number(5)
    if dtype < 1:
        raise Damaged("it has no dtype")
    if offset < 0 or size < 0:
        raise Damaged(f"it has {size} bytes from byte {offset} on")
    return Entry(
        dtype=TF_DTYPES.get(dtype, f"DataType {dtype}"),
        shape=shape,
        shard=entry.number(3),
        offset=offset,
        size=size,
        crc=entry.number(6),
        slices=tuple(map(_slice, entry.messages(7))),
    )


def _shape(entry: Message) -> tuple[int, ...]:
    sizes: tuple[int, ...] = ()
    for shape in entry.messages(2):
        if shape.number(3):
            raise Damaged("its number of dimensions is not known")
        sizes = tuple(dimension.number(1) for dimension in shape.messages(2))
    if min(sizes, default=0) < 0 or byte_size(sizes, "uint8") is None:
        raise Damaged(f"it has the shape {list(sizes)!s:.200}")
    return sizes


def _slice(message: Message) -> Slice:
    return tuple((extent.number(1), extent.number(2, -1)) for extent in message.messages(1))


def slice_key(name: bytes, part: Slice) -> bytes:
    """The key of a part's entry (tensorflow/core/util/saved_tensor_slice_util.cc).

    Zero, the name, the number of dimensions, and their starts and lengths, in the encoding of
    tensorflow/core/lib/strings/ordered_code.h, which sorts as the things do that it encodes.
    """
    escaped = re.sub(rb"[\x00\xff]", lambda byte: byte[0] + bytes([255 - byte[0][0]]), name)
    count = bytes([1, len(part)]) if part else b"\0"
    numbers = [_ordered(number) for extent in part for number in extent]
    return b"\0" + escaped + b"\0\1" + count + b"".join(numbers)


def _ordered(number: int) -> bytes:
    # Seven bits a byte, one of them the sign; as many leading bits as there are bytes are flipped.
    size = (number if number >= 0 else ~number).bit_length() // 7 + 1
    flipped = ((1 << size) - 1) << (7 * size)
    return ((number & ((1 << 8 * size) - 1)) ^ flipped).to_bytes(size, "big")
