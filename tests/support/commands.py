"""What a command leaves behind."""

import json
from typing import Any, NamedTuple


class Result(NamedTuple):
    """The result of a command."""

    status: int
    out: str
    err: str

    @property
    def printed(self) -> str:
        """What the command printed; it succeeded."""
        assert self.status == 0, self.err
        return self.out

    @property
    def words(self) -> str:
        """What it printed, in one line: a table breaks its words."""
        return " ".join(self.printed.split())

    @property
    def report(self) -> Any:
        """What it printed with `--json`."""
        return json.loads(self.printed)
