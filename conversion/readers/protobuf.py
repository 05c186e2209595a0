"""The wire format of protocol buffers: numbered fields of a message, without its description.

https://protobuf.dev/programming-guides/encoding/. Google's library is not asked: it wants the
description of every message, and would be one more dependency for the few that are read here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

#: Wire types. The deprecated groups (3, 4) are in none of the messages that are read here.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {FIXED64: 8, FIXED32: 4}


class Damaged(ValueError):
    """Bytes that break their format. Readers turn it into a `InputError` naming the file."""


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Read an unsigned number of 7 bits a byte, the lowest first.

    Args:
        data: Holds it.
        position: Where it begins.
        end: Where its bytes must have ended.

    Returns:
        The number, below 2**64, and the position after it.

    Raises:
        Damaged: It goes on past `end`, or past 64 bits.
    """
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            raise Damaged("a number is cut off")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, position
    raise Damaged("a number has more than 64 bits")


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Go through the fields of a message, unknown ones too.

    Yields:
        The field's number and its value: bytes for a string or a message, else an unsigned int.

    Raises:
        Damaged: A field is cut off, or of an unknown wire type.
    """
    position, end = 0, len(message)
    while position < end:
        tag, position = read_varint(message, position, end)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, position = read_varint(message, position, end)
            yield number, value
            continue
        if wire == BYTES:
            size, position = read_varint(message, position, end)
        elif wire in _FIXED_SIZES:
            size = _FIXED_SIZES[wire]
        else:
            raise Damaged(f"field {number} of a record has the wire type {wire}")
        if size > end - position:
            raise Damaged(f"field {number} of a record is cut off")
        content = message[position : position + size]
        position += size
        yield number, content if wire == BYTES else int.from_bytes(content, "little")


class Message:
    """A message whose fields are asked for by number; unknown ones are passed over.

    Raises:
        Damaged: As `fields`.
    """

    def __init__(self, content: bytes) -> None:
        self._values: defaultdict[int, list[int | bytes]] = defaultdict(list)
        for number, value in fields(content):
            self._values[number].append(value)

    def number(self, field: int, default: int = 0) -> int:
        """The last int of a field: an int32, int64, enum or fixed32."""
        values = [value for value in self._values[field] if isinstance(value, int)]
        return _signed(values[-1]) if values else default

    def contents(self, field: int) -> list[bytes]:
        """The bytes of each string or message of a field."""
        return [value for value in self._values[field] if isinstance(value, bytes)]

    def messages(self, field: int) -> list[Message]:
        """The messages of a field."""
        return [Message(content) for content in self.contents(field)]


def _signed(value: int) -> int:
    """Two's complement of 64 bits."""
    return value - (1 << 64) if value >> 63 else value
