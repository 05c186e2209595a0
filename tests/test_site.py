"""The generated parts of the site, and the drawings, match the code."""

import importlib.util
import re

import pytest

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


@pytest.mark.parametrize(("path", "content"), chart.texts().items(), ids=[*chart.texts()])
def test_pages_show_the_recorded_runs(path, content):
    """`python -m benchmarks.chart` has been run since the last recording."""
    assert (ROOT / path).read_text(encoding="utf-8") == content


def test_commands_page_names_every_command_and_option():
    spec = importlib.util.spec_from_file_location("pages", ROOT / "docs/site/command_pages.py")
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    page = pages.commands_page()
    root = pages.typer.main.get_command(pages.app)
    assert list(dict.fromkeys(COMMAND.findall(page))) == list(root.commands)
    assert "`--batch-tokens <int>`" in page and "`--doc-stride" in page
    assert " \\\n  --max-steps 5000 \\\n  --output my-bert\n```" in page  # all lines
