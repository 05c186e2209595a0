"""The records of TensorFlow's tensor bundles, from bytes.

BundleHeaderProto and BundleEntryProto of tensorflow/core/protobuf/tensor_bundle.proto, with
TensorShapeProto and VersionDef of tensorflow/core/framework inside them.
"""

from __future__ import annotations

from typing import NamedTuple

from .mapped import byte_size
from .protobuf import parse

#: DataType of tensorflow/core/framework/types.proto: the names in `DTYPES`, and strings.
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
#: The only version of the format.
VERSION = 1


class Entry(NamedTuple):
    """The record of a tensor."""

    dtype: str
    """A value of `TF_DTYPES`, or "DataType 77" for another number."""
    shape: tuple[int, ...]
    shard: int
    """The number of its data file."""
    offset: int
    """Its first byte there."""
    size: int
    """Its bytes."""
    crc: int
    """Their masked crc32c."""


def read_header(record: bytes) -> tuple[int, int]:
    """Read the record under the empty key: the number of data files, and the format's version.

    Raises:
        ValueError: It is of another format, version or byte order.
    """
    numbers, messages = parse(record)
    if messages[1]:
        # SavedTensorSlices, the first record of the earlier format, begins with a message.
        raise ValueError("it is of TensorFlow's first format (V1); save it again by tf.train.Saver")
    shards = numbers.get(1, 0)
    versions = parse(messages[3][-1])[0] if messages[3] else {}
    if shards < 1:
        raise ValueError(f"it claims {shards} data files")
    if numbers.get(2):
        raise ValueError("it was written on a big-endian machine")
    if versions.get(2, 0) > VERSION:
        raise ValueError(f"it needs readers of version {versions[2]}, later than {VERSION}")
    return shards, versions.get(1, 0)


def read_entry(record: bytes) -> Entry:
    """Read the record of a tensor.

    Raises:
        ValueError: It is no such record, or has impossible values.
    """
    numbers, messages = parse(record)
    shape: tuple[int, ...] = ()
    for content in messages[2]:
        rank, axes = parse(content)
        if rank.get(3):
            raise ValueError("its number of dimensions is unknown")
        shape = tuple(parse(axis)[0].get(1, 0) for axis in axes[2])
    byte_size(shape, "uint8")
    dtype, shard, offset, size, crc = (numbers.get(field, 0) for field in (1, 3, 4, 5, 6))
    if messages[7]:
        raise ValueError("it is a partitioned variable; save it again without a partitioner")
    if dtype < 1:
        raise ValueError("it has no dtype")
    if offset < 0 or size < 0:
        raise ValueError(f"it has {size} bytes from byte {offset}")
    kind = TF_DTYPES.get(dtype, f"DataType {dtype}")
    return Entry(kind, shape, shard, offset, size, crc)
