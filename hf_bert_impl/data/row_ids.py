"""The ids of rows on disk, where there may be many: each id is added once."""

from __future__ import annotations

import sqlite3


class RowIds:
    """Text or 64-bit integer ids, in a temporary database that keeps a few megabytes in memory."""

    def __init__(self) -> None:
        self._base = sqlite3.connect("")
        self._base.execute("CREATE TABLE ids (id PRIMARY KEY) WITHOUT ROWID")

    def close(self) -> None:
        """Deletes them."""
        self._base.close()

    def add(self, identifier: str | int) -> bool:
        """Adds an id; returns whether it is new."""
        added = self._base.execute("INSERT OR IGNORE INTO ids VALUES (?)", (identifier,))
        return added.rowcount == 1
