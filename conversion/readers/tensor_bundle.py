"""The records of TensorFlow's tensor bundles, to and from bytes.

BundleHeaderProto and BundleEntryProto of tensorflow/core/protobuf/tensor_bundle.proto, with
TensorShapeProto, TensorSliceProto and VersionDef of tensorflow/core/framework inside them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hf_bert_impl.errors import InputError

from .mapped import byte_size
from .protobuf import Damaged, bytes_field, fields, fixed32_field, number_field, signed

#: DataType of tensorflow/core/framework/types.proto: those of `DTYPES`, and the others by
#: TensorFlow's names.
TF_DTYPES = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    7: "string",
    8: "complex64",
    9: "int64",
    10: "bool",
    11: "qint8",
    12: "quint8",
    13: "qint32",
    14: "bfloat16",
    15: "qint16",
    16: "quint16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    20: "resource",
    21: "variant",
    22: "uint32",
    23: "uint64",
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


def read_header(record: bytes, index: Path) -> tuple[int, int]:
    """Read the record under the empty key, the first one.

    Args:
        record: Its bytes.
        index: The file that it is from, for the errors.

    Returns:
        The number of data files, and the version of the format that it was written in.

    Raises:
        InputError: It is of another format, version or byte order.
        Damaged: It is no such record.
    """
    shards = endianness = version = oldest_reader = 0
    for field in fields(record):
        match field:
            case (1, bytes()):
                # SavedTensorSlices, the first record of the format before this one, of which all
                # is in one file, begins with a message.
                raise InputError(
                    f"{index} is a checkpoint of TensorFlow's first format (V1)",
                    "one of the second (.index and .data-… files)",
                    "restore it in TensorFlow and save it by tf.train.Saver(write_version=2)",
                )
            case (1, int(value)):
                shards = signed(value)
            case (2, int(value)):
                endianness = value
            case (3, bytes(message)):
                for version_field in fields(message):
                    match version_field:
                        case (1, int(value)):
                            version = signed(value)
                        case (2, int(value)):
                            oldest_reader = signed(value)
    if shards < 1:
        raise Damaged(f"it claims {shards} data files")
    if endianness != 0:
        raise InputError(
            f"{index} was written on a big-endian machine",
            "little-endian numbers",
            "restore and save it again on a common machine (x86, ARM)",
        )
    if oldest_reader > VERSION:
        raise InputError(
            f"{index} is of a tensor-bundle format for readers of version {oldest_reader} on",
            f"version {VERSION}",
            "save it again with an older TensorFlow",
        )
    return shards, version


def read_entry(record: bytes) -> Entry:
    """Read the record of a tensor.

    Raises:
        Damaged: It is no such record, or one that no tensor can have.
    """
    dtype = shard = offset = size = crc = 0
    shape: tuple[int, ...] = ()
    slices: list[Slice] = []
    for field in fields(record):
        match field:
            case (1, int(value)):
                dtype = signed(value)
            case (2, bytes(message)):
                shape = _read_shape(message)
            case (3, int(value)):
                shard = signed(value)
            case (4, int(value)):
                offset = signed(value)
            case (5, int(value)):
                size = signed(value)
            case (6, int(value)):
                crc = value
            case (7, bytes(message)):
                slices.append(_read_slice(message))
    if dtype < 1:
        raise Damaged("it has no dtype")
    if offset < 0 or size < 0:
        raise Damaged(f"it has {size} bytes from byte {offset} on")
    name = TF_DTYPES.get(dtype, f"DataType {dtype}")
    return Entry(name, shape, shard, offset, size, crc, tuple(slices))


def _read_shape(message: bytes) -> tuple[int, ...]:
    sizes = []
    for field in fields(message):
        match field:
            case (2, bytes(dimension)):
                size = 0
                for part in fields(dimension):
                    match part:
                        case (1, int(value)):
                            size = signed(value)
                sizes.append(size)
            case (3, int(value)) if value:
                raise Damaged("its number of dimensions is not known")
    if min(sizes, default=0) < 0 or byte_size(sizes, "uint8") is None:
        raise Damaged(f"it has the shape {sizes!s:.200}")
    return tuple(sizes)


def _read_slice(message: bytes) -> Slice:
    extents = []
    for field in fields(message):
        match field:
            case (1, bytes(extent)):
                start, length = 0, -1
                for part in fields(extent):
                    match part:
                        case (1, int(value)):
                            start = signed(value)
                        case (2, int(value)):
                            length = signed(value)
                extents.append((start, length))
    return tuple(extents)


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


def write_header() -> bytes:
    """The record under the empty key of a bundle with one data file."""
    return number_field(1, 1) + bytes_field(3, number_field(1, VERSION))


def write_entry(entry: Entry) -> bytes:
    """The record of a tensor that is not stored in parts."""
    dtype = next(number for number, name in TF_DTYPES.items() if name == entry.dtype)
    shape = b"".join(bytes_field(2, number_field(1, size)) for size in entry.shape)
    return (
        number_field(1, dtype)
        + bytes_field(2, shape)
        + number_field(3, entry.shard)
        + number_field(4, entry.offset)
        + number_field(5, entry.size)
        + fixed32_field(6, entry.crc)
    )
