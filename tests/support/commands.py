"""`hf-bert` as tests run it: what a command leaves behind, and several in one other process."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

#: Runs `hf-bert` with each of these arguments, and says what was left on standard input.
RUN = """
import contextlib, io, json, sys
from hf_bert_impl.cli import main

results = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        with contextlib.redirect_stderr(io.StringIO()) as err:
            status = main(arguments)
    results.append([status, out.getvalue(), err.getvalue()])
print(json.dumps([results, sys.stdin.read().splitlines()]))
"""


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


def run_commands(
    commands: Iterable[Iterable[object]],
    environment: Mapping[str, str] = os.environ,
    *,
    lines: Iterable[str] = (),
) -> tuple[list[Result], list[str]]:
    """Runs commands in one process, one after the other: its start takes longer than they do.

    Args:
        commands: The arguments of each.
        environment: Of the process.
        lines: Standard input of all of them.

    Returns:
        The result of each, and the lines that none of them read.
    """
    told = json.dumps([[str(word) for word in command] for command in commands])
    done = subprocess.run(
        [sys.executable, "-c", RUN, told],
        input="".join(f"{line}\n" for line in lines),
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results, left = json.loads(done.stdout.splitlines()[-1])
    return [Result(*result) for result in results], left
