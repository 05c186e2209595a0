"""The ids of rows, each only once: on the disk, where there may be many."""

from __future__ import annotations

import sqlite3


class RowIds:
    """Ids that were met so far, texts or whole numbers of 64 bits.

    They lie in a temporary data base, which keeps a few megabytes in memory and is gone with this
    object.
    """

    def __init__(self) -> None:
        # Autocommit off: nothing has to outlive the process.
        self._base = sqlite3.connect("")
        self._base.execute("CREATE TABLE ids (id PRIMARY KEY) WITHOUT ROWID")

    def close(self) -> None:
        """Delete them."""
        self._base.close()

    def add(self, identifier: str | int) -> bool:
        """Take the next one, and tell whether it is new."""
        added = self._base.execute("INSERT OR IGNORE INTO ids VALUES (?)", (identifier,))
        return added.rowcount == 1
