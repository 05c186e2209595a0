"""Imports point one way: down the floors of the package, and never in a circle.

Imports inside functions and for the type checker count too.
"""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "hf_bert_impl"

#: From the ground up. A folder imports from itself, from its own floor and from those below. Single
#: files beside the folders are on the ground where they are not named here.
FLOORS = (
    ("files",),
    ("checkpoint_files", "checkpoints", "model", "tokenization_bert", "tokenizer_files"),
    ("data", "encoders", "inference", "measuring"),
    ("auto", "optimization", "text_encoder"),
    ("parity", "tasks", "training", "visualization"),
    ("conversion", "hub", "export"),
    ("benchmark", "distributed"),
    ("serving",),
    ("cli",),
)

#: Every module but the package's own, which only names what the others have.
FILES = {
    prefix + ".".join(path.relative_to(folder).with_suffix("").parts): path
    for prefix, folder in {"": ROOT / PACKAGE, "conversion.": ROOT / "conversion"}.items()
    for path in folder.rglob("*.py")
    if path != ROOT / PACKAGE / "__init__.py"
}


def imported_names(text: str, module: str) -> Iterator[str]:
    """Names that a file imports, or takes from the package as an attribute, by its full name."""
    parents = [PACKAGE, *module.split(".")[:-1]]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = parents[: len(parents) - node.level + 1] if node.level else []
            home = ".".join([*above, *filter(None, [node.module])])
            yield from (f"{home}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


#: The names that the package offers, and where they are.
PUBLIC = {
    f"{PACKAGE}.{name.rpartition('.')[2]}": name
    for name in imported_names((ROOT / PACKAGE / "__init__.py").read_text(), "__init__")
    if name.startswith(f"{PACKAGE}.")
}


def module_of(name: str) -> str | None:
    """The module that a full name is in, or None where it is not one of ours."""
    head, _, rest = PUBLIC.get(name, name).partition(".")
    while rest and head == PACKAGE:
        for module in (rest, f"{rest}.__init__"):
            if module in FILES:
                return module
        rest = rest.rpartition(".")[0]
    return None


def folder(module: str) -> str:
    return module.partition(".")[0]


#: Which module imports which.
EDGES = {
    (module, target)
    for module, path in FILES.items()
    for name in imported_names(path.read_text(encoding="utf-8"), module)
    if (target := module_of(name)) not in (None, module)
}


def test_imports_point_one_way() -> None:
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    for module in FILES:
        if "." not in module:
            floor.setdefault(module, 0)
        assert folder(module) in floor, f"{folder(module)}/ has no floor: give it one in FLOORS"
    assert [(a, b) for a, b in sorted(EDGES) if floor[folder(a)] < floor[folder(b)]] == []
    # Neither files nor folders import one another in a circle, which would be an error here.
    for name in (str, folder):
        below: dict[str, set[str]] = {}
        for importing, imported in EDGES:
            if name(importing) != name(imported):
                below.setdefault(name(importing), set()).add(name(imported))
        graphlib.TopologicalSorter(below).prepare()
