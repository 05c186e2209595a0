"""MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md), head by head.

MessagePack's own library gives values without saying where they lie: it would read the whole file
and hold an array several times. Here only the few bytes in front of each value are read, so that a
file of any size is listed at once and its arrays stay in the mapped file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from .mapped import damaged, map_file


@dataclass(frozen=True)
class Head:
    """What the first bytes of a value say."""

    kind: str
    """"table", "list", "text", "bytes", "ext", "int64", "float64", "bool" or "null"."""
    length: int
    """Entries of a table or list; bytes of text, bytes and ext; 0 for the others."""
    start: int
    """Where the entries or bytes start; where a value without them ends."""
    value: Any = None
    """The value of a number, bool or null; the type of an ext."""

    @property
    def end(self) -> int:
        """Where a value that holds no others ends."""
        return self.start + self.length


#: Kind and struct format of what follows the first byte, by that byte.
_SIZED = {0xC4: ("bytes", ">B"), 0xC5: ("bytes", ">H"), 0xC6: ("bytes", ">I")}
_SIZED |= {0xC7: ("ext", ">Bb"), 0xC8: ("ext", ">Hb"), 0xC9: ("ext", ">Ib")}
_SIZED |= {0xD9: ("text", ">B"), 0xDA: ("text", ">H"), 0xDB: ("text", ">I")}
_SIZED |= {0xDC: ("list", ">H"), 0xDD: ("list", ">I"), 0xDE: ("table", ">H"), 0xDF: ("table", ">I")}
_NUMBERS = {0xCA: ("float64", ">f"), 0xCB: ("float64", ">d")}
_NUMBERS |= {0xCC + power: ("int64", form) for power, form in enumerate((">B", ">H", ">I", ">Q"))}
_NUMBERS |= {0xD0 + power: ("int64", form) for power, form in enumerate((">b", ">h", ">i", ">q"))}
_WORDS = {0xC0: ("null", None), 0xC2: ("bool", False), 0xC3: ("bool", True)}


class MessagePack:
    """A file in memory, to be read head by head.

    Raises:
        InputError: The file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = map_file(path)

    def damaged(self, what: str) -> NoReturn:
        raise damaged("MessagePack", self.path, what)

    def head(self, at: int, end: int) -> Head:
        """Read what stands in front of a value.

        Args:
            at: Where the value starts.
            end: Where it has to end by.

        Raises:
            InputError: There is no value, or it ends later.
        """
        if at >= end:
            self.damaged(f"it ends within a value, at {end}")
        first, start = self.data[at], at + 1
        if first <= 0x7F or first >= 0xE0:
            return Head("int64", 0, start, first if first <= 0x7F else first - 256)
        if first <= 0x8F:
            head = Head("table", first & 15, start)
        elif first <= 0x9F:
            head = Head("list", first & 15, start)
        elif first <= 0xBF:
            head = Head("text", first & 31, start)
        elif first in _WORDS:
            kind, value = _WORDS[first]
            head = Head(kind, 0, start, value)
        elif 0xD4 <= first <= 0xD8:
            (code,) = self._fields(">b", start, end)
            head = Head("ext", 1 << (first - 0xD4), start + 1, code)
        elif first in _NUMBERS:
            kind, form = _NUMBERS[first]
            (number,) = self._fields(form, start, end)
            head = Head(kind, 0, start + struct.calcsize(form), number)
        elif first in _SIZED:
            kind, form = _SIZED[first]
            length, *code = self._fields(form, start, end)
            head = Head(kind, length, start + struct.calcsize(form), code[0] if code else None)
        else:
            self.damaged(f"byte {first:#x} at {at} starts no value")
        if head.end > end:  # an entry takes a byte at the least
            self.damaged(f"{head.kind} of {head.length} at {at} ends beyond {end}")
        return head

    def _fields(self, form: str, at: int, end: int) -> tuple[Any, ...]:
        if at + struct.calcsize(form) > end:
            self.damaged(f"it ends within a value, at {end}")
        return struct.unpack_from(form, self.data, at)

    def text(self, at: int, end: int, what: str) -> tuple[str, int]:
        """Read a text.

        Args:
            at: Where it starts.
            end: Where it has to end by.
            what: What it is, for errors.

        Returns:
            The text, and where it ends.

        Raises:
            InputError: The value is no text, or no UTF-8.
        """
        head = self.head(at, end)
        if head.kind != "text":
            self.damaged(f"{what} at {at} is {head.kind}, not text")
        try:
            return self.data[head.start : head.end].decode(), head.end
        except UnicodeDecodeError:
            self.damaged(f"{what} at {at} is no UTF-8")
