"""The ids of rows: on the disk where they are many, each only once."""

from __future__ import annotations

import sqlite3
from typing import Any

from hf_bert_impl.errors import InputError

EXPECTED = "a text or a whole number of 64 bits, another one in each row"


class RowIds:
    """Collects ids in the order of the rows; all are texts, or all are whole numbers.

    They lie in a temporary data base, which keeps a few megabytes in memory and is gone with this
    object.
    """

    def __init__(self) -> None:
        # Autocommit off: nothing has to outlive the process.
        self._base = sqlite3.connect("")
        self._base.execute("CREATE TABLE ids (row INTEGER PRIMARY KEY, id UNIQUE NOT NULL)")
        self._rows = 0
        #: `str` or `int`; None before the first.
        self.kind: type | None = None

    def close(self) -> None:
        """Delete them."""
        self._base.close()

    def add(self, place: str, identifier: Any) -> None:
        """Take the next one.

        Args:
            place: Where it stands, for messages.
            identifier: The id.

        Raises:
            InputError: It is missing, neither text nor number, or an earlier row has it.
        """
        if identifier is None or identifier == "":
            raise InputError(f"{place} has no id", EXPECTED, "add it, or leave `id_column` out")
        kind = type(identifier)
        if kind not in (str, int) or (kind is int and not -(2**63) <= identifier < 2**63):
            shown = f"{identifier!r:.40} ({kind.__name__})"
            raise InputError(f"{place} has {shown} for an id", EXPECTED, "mend it")
        self.kind = self.kind or kind
        if kind is not self.kind:
            raise InputError(
                f"{place} has the id {identifier!r:.40} ({kind.__name__}) after ids that are "
                f"{self.kind.__name__}",
                "ids of one type",
                "mend it",
            )
        try:
            self._base.execute("INSERT INTO ids VALUES (?, ?)", (self._rows, identifier))
        except sqlite3.IntegrityError:
            found = self._base.execute("SELECT row FROM ids WHERE id = ?", (identifier,))
            raise InputError(
                f"{place} has the id {identifier!r:.60}, which text {found.fetchone()[0] + 1} "
                "has already",
                EXPECTED,
                "mend it, or leave `id_column` out",
            ) from None
        except UnicodeEncodeError:
            raise InputError(
                f"the id in {place} has half a surrogate pair", "whole characters", "mend it"
            ) from None
        self._rows += 1

    def between(self, start: int, stop: int) -> list[Any]:
        """The ids of rows `start` to `stop - 1`."""
        found = self._base.execute(
            "SELECT id FROM ids WHERE row >= ? AND row < ? ORDER BY row", (start, stop)
        )
        return [identifier for (identifier,) in found]
