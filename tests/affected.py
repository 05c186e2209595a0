"""Which tests a change needs, by who imports what.

    python tests/affected.py            # the tests of what differs from main, as words for pytest
    python tests/affected.py FILE …     # of these files

A test file is affected if it is changed itself, imports a changed module or one that imports it,
uses a changed helper or `conftest.py`, or names a changed file, its folder of fixtures or its
pattern (`*.md`). `make affected` runs them, in both tiers.
"""

import functools
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.test_structure import EDGES, FILES, ROOT, imported_names, module_of

#: Files of tests and their helpers, and the texts of each.
TEXTS = {path: path.read_text("utf-8") for path in sorted((ROOT / "tests").rglob("*.py"))}
TESTS = [path for path in TEXTS if path.name.startswith("test_")]
#: Their options apply to all tests.
FOR_ALL = {ROOT / "pyproject.toml", ROOT / "tests/conftest.py"}
#: A changed file below counts by its folder's name.
FIXTURES = ROOT / "tests/fixtures"
MODULES = {path.resolve(): module for module, path in FILES.items()}
#: Full names that a file of tests imports or uses.
NAMES = {path: set(imported_names(text, "tests")) for path, text in TEXTS.items()}


def affected_by(changed: set[Path]) -> list[Path]:
    """The test files that changes of these files affect."""
    if changed & FOR_ALL:
        return TESTS
    modules = {MODULES[path] for path in map(Path.resolve, changed) if path in MODULES}
    modules |= {importing for importing, imported in EDGES if imported in modules}
    names = {module.split(".")[-1] for module in modules}
    others = {path for path in changed if path.suffix != ".py"}
    words = {word for path in others for word in (path.name, f"*{path.suffix}")}
    words |= {path.relative_to(FIXTURES).parts[0] for path in changed if FIXTURES in path.parents}
    found = changed | {path for path in TEXTS if any(word in TEXTS[path] for word in words)}
    while more := {path for path in TEXTS if helpers_of(path) & found} - found:
        found |= more
    return [
        test
        for test in TESTS
        if test in found
        or test.stem.removeprefix("test_") in names
        or modules.intersection(map(module_of, NAMES[test]))
    ]


@functools.cache
def helpers_of(path: Path) -> frozenset[Path]:
    """The helpers that a file of tests imports, and the `conftest.py` of its folders.

    Not that of all tests: through it, each of its own helpers would need every test.
    """
    names = [name.split(".") for name in NAMES[path] if name.startswith("tests.")]
    imported = {ROOT / "/".join(parts[:size]) for parts in names for size in (2, 3, 4)}
    shared = {folder / "conftest.py" for folder in path.parents}
    return frozenset(({path.with_suffix(".py") for path in imported} | shared) - FOR_ALL)


def changed_files() -> set[Path]:
    """Files that differ from main, committed or not."""
    since = subprocess.check_output(["git", "merge-base", "HEAD", "main"], text=True).strip()
    commands = (["diff", "--name-only", since], ["ls-files", "--others", "--exclude-standard"])
    lines = [subprocess.check_output(["git", *words], text=True, cwd=ROOT) for words in commands]
    return {ROOT / line for line in "".join(lines).splitlines()}


if __name__ == "__main__":
    given = {Path(word).absolute() for word in sys.argv[1:]} or changed_files()
    print(*(test.relative_to(ROOT) for test in affected_by(given)))
