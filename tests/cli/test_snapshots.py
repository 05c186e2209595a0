"""The texts of all help pages and errors.

After a change of words, `UPDATE_SNAPSHOTS=1 python -m pytest -n 0 tests/cli/test_snapshots.py`
writes the files; read the difference before you commit it.
"""

import os
import re
import shlex
from pathlib import Path

from tests.cli.cases import APP, COMMANDS, tree

FOLDER = Path(__file__).parent / "snapshots"
GROUPS = sorted(name for name, command in APP.commands.items() if hasattr(command, "commands"))


def compare(name: str, found: str) -> None:
    """Compares a text with the file, or makes it the file's."""
    if os.environ.get("UPDATE_SNAPSHOTS"):
        (FOLDER / name).write_text(found, encoding="utf-8")
    expected = (FOLDER / name).read_text(encoding="utf-8")
    assert found == expected, f"differs from {name}; {__doc__}"


def test_help(hf_bert):
    """Each has an example of its command."""
    texts = []
    for name in ("", *GROUPS, *COMMANDS):
        result = hf_bert(*name.split(), "--help")
        assert (result.status, result.err) == (0, "")
        if name not in ("", *GROUPS):
            assert f"Example: hf-bert {name}" in " ".join(result.out.split())
        lines = re.sub(r"\x1b\[[\d;]*m", "", result.out).splitlines()
        texts += [f"$ hf-bert {name} --help", *filter(None, map(str.rstrip, lines)), ""]
    compare("help.txt", "\n".join(texts))


def test_errors(hf_bert, place):
    """The file names the commands. They print one line and write no file."""
    before, texts = tree(place), []
    for line in (FOLDER / "errors.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("$ "):
            result = hf_bert(*shlex.split(line)[2:])
            assert (result.status, result.out) == (2, ""), line
            assert re.fullmatch("error: .*\n", result.err), (line, result.err)
            assert tree(place) == before, line
            texts.append(f"{line}\n{result.err.replace(str(place), '.')}")
    compare("errors.txt", "\n".join(texts))
