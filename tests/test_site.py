"""The drawings of docs/inside.md name what the code has."""

import re

from tests.test_structure import EDGES, FLOORS, ROOT, folder

BOX = re.compile(r'<text x="[\d.]+" y="([\d.]+)"[^>]*>(\w+)</text>')


def test_folders_are_drawn_above_what_they_import():
    drawing = (ROOT / "docs/drawings/folders.svg").read_text(encoding="utf-8")
    height = {name: float(y) for y, name in BOX.findall(drawing)}
    assert height.keys() == {name for row in FLOORS for name in row}
    for importing, imported in {(folder(a), folder(b)) for a, b in EDGES}:
        if importing != imported and {importing, imported} <= height.keys():
            assert height[importing] < height[imported], (importing, imported)
