"""The drawings of docs/inside.md name what the code has."""

import re
from pathlib import Path

from tests.test_structure import EDGES, FLOORS, folder

DOCS = Path(__file__).parents[1] / "docs"
BOX = re.compile(r'<text x="[\d.]+" y="([\d.]+)"[^>]*>(\w+)</text>')


def test_folders_are_drawn_above_what_they_import():
    drawing = (DOCS / "drawings/folders.svg").read_text(encoding="utf-8")
    height = {name: float(y) for y, name in BOX.findall(drawing)}
    assert height.keys() == {name for row in FLOORS for name in row}
    for importing, imported in {(folder(a), folder(b)) for a, b in EDGES}:
        if importing != imported and {importing, imported} <= height.keys():
            assert height[importing] < height[imported], (importing, imported)


def test_files_that_the_tours_name_exist():
    there = {path.name for path in DOCS.parent.glob("[cht]*/**/*.py")}
    tours = [DOCS / "inside.md", *(DOCS / "drawings").glob("*.svg")]
    named = {name for tour in tours for name in re.findall(r"\w+\.py\b", tour.read_text("utf-8"))}
    assert len(named) > 30 and named <= there
