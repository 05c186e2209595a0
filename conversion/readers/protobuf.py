"""The wire format of protocol buffers: numbered fields of a message, without its description.

https://protobuf.dev/programming-guides/encoding/. Google's library would be one more dependency,
and needs the description of every message.
"""

from __future__ import annotations

from collections import defaultdict

#: Wire types, without the deprecated groups (3, 4).
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {FIXED64: 8, FIXED32: 4}


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Read an unsigned number of 7 bits per byte, the lowest first.

    Args:
        data: Bytes that contain it.
        position: Its start.
        end: The limit of its bytes.

    Returns:
        The number, below 2**64, and the position after it.

    Raises:
        ValueError: It exceeds `end`, or 64 bits.
    """
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            raise ValueError("a number is truncated")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, position
    raise ValueError("a number has more than 64 bits")


def parse(message: bytes) -> tuple[dict[int, int], dict[int, list[bytes]]]:
    """Parse a message.

    Returns:
        By number of the field: the last int (two's complement; fixed ones unsigned), and the
        bytes of each string or message.

    Raises:
        ValueError: A field is truncated, or of an unknown wire type.
    """
    numbers: dict[int, int] = {}
    contents: defaultdict[int, list[bytes]] = defaultdict(list)
    position, end = 0, len(message)
    while position < end:
        tag, position = read_varint(message, position, end)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, position = read_varint(message, position, end)
            numbers[number] = value - (1 << 64) if value >> 63 else value
            continue
        if wire == BYTES:
            size, position = read_varint(message, position, end)
        elif wire in _FIXED_SIZES:
            size = _FIXED_SIZES[wire]
        else:
            raise ValueError(f"field {number} of a record has the wire type {wire}")
        content = message[position : position + size]
        position += size
        if position > end:
            raise ValueError(f"field {number} of a record is truncated")
        if wire == BYTES:
            contents[number].append(content)
        else:
            numbers[number] = int.from_bytes(content, "little")
    return numbers, contents
