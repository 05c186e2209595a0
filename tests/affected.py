"""Which tests a change needs, by who imports what.

    python tests/affected.py            # the tests of what differs from main, as words for pytest
    python tests/affected.py FILE …     # of these files
    python tests/affected.py --table    # the table of CONTRIBUTING.md

A test file is affected if it is changed itself, imports a changed module or one that imports it,
uses a changed helper or `conftest.py`, or names a changed file or its folder of fixtures.
`make affected` runs them, in both tiers.
"""

import functools
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.test_structure import EDGES, FILES, ROOT, folder, imported_names, module_of

#: Files of tests, and the modules of the package that each imports.
IMPORTED = {
    path.relative_to(ROOT): {
        target
        for name in imported_names(path.read_text("utf-8"), "tests")
        if (target := module_of(name)) is not None
    }
    for path in sorted((ROOT / "tests").rglob("test_*.py"))
}
#: Files of tests and their helpers, and the texts of each.
TEXTS = {path: path.read_text("utf-8") for path in sorted((ROOT / "tests").rglob("*.py"))}
#: Their options apply to all tests.
FOR_ALL = (ROOT / "pyproject.toml", ROOT / "tests/conftest.py")
#: A changed file below counts by its folder's name.
FIXTURES = ROOT / "tests/fixtures"
#: It runs the blocks of all pages.
PAGES = Path("tests/test_examples.py")
#: Places that a line of the table names.
MOST = 6
MODULES = {path.resolve(): module for module, path in FILES.items()}


def affected_by(changed: set[Path]) -> list[Path]:
    """The test files that changes of these files affect; paths from the root."""
    modules = {MODULES[path] for path in map(Path.resolve, changed) if path in MODULES}
    modules |= {importing for importing, imported in EDGES if imported in modules}
    names = {path.stem.removeprefix("test_") for path in changed} | {
        m.split(".")[-1] for m in modules
    }
    others = {path.name for path in changed if path.suffix != ".py"}
    others |= {path.relative_to(FIXTURES).parts[0] for path in changed if FIXTURES in path.parents}
    helpers = users_of(changed | {path for path in TEXTS if named_in(path, others)})
    return [
        test
        for test, imported in IMPORTED.items()
        if ROOT / test in changed | helpers
        or imported & modules
        or test.stem.removeprefix("test_") in names
        or changed.intersection(FOR_ALL)
        or (test == PAGES and any(name.endswith(".md") for name in others))
    ]


def named_in(path: Path, names: set[str]) -> bool:
    """Whether a file of tests has one of these words."""
    return any(name in TEXTS[path] for name in names)


def users_of(changed: set[Path]) -> set[Path]:
    """The files of tests that use changed helpers, directly or through other helpers."""
    users = {path for path in changed if path in TEXTS}
    for _ in range(len(TEXTS)):
        more = {path for path in TEXTS.keys() - users if helpers_of(path) & users}
        if not more:
            break
        users |= more
    return users


@functools.cache
def helpers_of(path: Path) -> frozenset[Path]:
    """The helpers that a file of tests imports, and the `conftest.py` of its folders.

    Not that of all tests: through it, each of its own helpers would need every test.
    """
    names = imported_names(TEXTS[path], "tests")
    parts = (name.split(".")[:size] for name in names for size in (2, 3, 4))
    imported = {(ROOT / "/".join(some)).with_suffix(".py") for some in parts if some[0] == "tests"}
    shared = {folder / "conftest.py" for folder in path.parents}
    return frozenset((imported | shared).difference(FOR_ALL))


def changed_files() -> set[Path]:
    """Files that differ from main, committed or not."""
    since = subprocess.check_output(["git", "merge-base", "HEAD", "main"], text=True).strip()
    commands = (["diff", "--name-only", since], ["ls-files", "--others", "--exclude-standard"])
    lines = [subprocess.check_output(["git", *words], text=True, cwd=ROOT) for words in commands]
    return {ROOT / line for line in "".join(lines).splitlines()}


def table() -> list[str]:
    """One line a folder: the folders of tests that a change in it affects, most files first."""
    lines = ["| change in | tests in |", "|---|---|"]
    for name in sorted({folder(module) for module in FILES if "." in module}):
        files = affected_by({path for module, path in FILES.items() if folder(module) == name})
        places = [str(Path(*test.parts[:2])) for test in files]
        order = sorted(set(places), key=lambda place: (-places.count(place), place))
        shown = ", ".join(f"`{place.removeprefix('tests/')}`" for place in order[:MOST])
        more = f" and {len(order) - MOST} more" if len(order) > MOST else ""
        lines.append(f"| `{name}/` | {shown}{more} |")
    return lines


if __name__ == "__main__":
    words = sys.argv[1:]
    if words == ["--table"]:
        print("\n".join(table()))
    else:
        given = {Path(word).absolute() for word in words} or changed_files()
        print(*affected_by(given))
