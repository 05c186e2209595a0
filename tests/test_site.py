"""The generated parts of the site, and the drawings, match the code."""

import importlib.util
import re

from benchmarks import chart
from tests.test_structure import EDGES, FLOORS, ROOT, folder

BOX = re.compile(r'<text x="[\d.]+" y="([\d.]+)"[^>]*>(\w+)</text>')
COMMAND = re.compile(r"^#+ hf-bert ([\w-]+)", re.MULTILINE)


def test_folders_are_drawn_above_what_they_import():
    drawing = (ROOT / "docs/drawings/folders.svg").read_text(encoding="utf-8")
    height = {name: float(y) for y, name in BOX.findall(drawing)}
    assert height.keys() == {name for row in FLOORS for name in row}
    for importing, imported in {(folder(a), folder(b)) for a, b in EDGES}:
        if importing != imported and {importing, imported} <= height.keys():
            assert height[importing] < height[imported], (importing, imported)


def test_speed_page_shows_the_recorded_runs():
    """`python -m benchmarks.chart` has been run since the last recording."""
    page = (ROOT / "docs/speed.md").read_text(encoding="utf-8")
    assert page == chart.with_tables(page) and all(
        table in page for table in chart.tables().values()
    )
    assert (ROOT / "docs/drawings/speed.svg").read_text(encoding="utf-8") == chart.draw()


def test_commands_page_names_every_command_and_option():
    spec = importlib.util.spec_from_file_location("pages", ROOT / "docs/site/command_pages.py")
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    page = pages.commands_page()
    root = pages.typer.main.get_command(pages.app)
    assert list(dict.fromkeys(COMMAND.findall(page))) == list(root.commands)
    assert "`--batch-tokens <int range>`" in page and "`--doc-stride" in page
