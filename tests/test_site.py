"""docs/site: what is shown beside the pages of docs/, and what the check of the built site sees."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

SITE = Path(__file__).parents[1] / "docs/site"
sys.path.insert(0, str(SITE))
check_site = importlib.import_module("check_site")
drawings = importlib.import_module("drawings")

PAGE = '<html><body><h1 id="top">Title</h1>{}</body></html>'


def written(folder, *bodies):
    """A site of pages a.html, b.html, …, all of them known to search."""
    names = [f"{letter}.html" for letter, _ in zip("abc", bodies, strict=False)]
    for name, body in zip(names, bodies, strict=True):
        (folder / name).write_text(PAGE.format(body))
    (folder / "search").mkdir()
    index = {"docs": [{"location": name, "text": "words"} for name in names]}
    (folder / "search/search_index.json").write_text(json.dumps(index))
    return folder


def test_a_good_site_has_no_faults(tmp_path):
    good = '<a href="b.html#top">b</a><a href="https://x.org">x</a><img src="a.png" alt="a">'
    (tmp_path / "a.png").touch()
    (tmp_path / "look.css").write_text("a { background: url(a.png) }")
    code = "<pre><code>**no** [link](of) $this$</code></pre>"
    assert not list(check_site.faults(written(tmp_path, good + code, '<a href="#top">up</a>')))


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="c.html">c</a>', "c.html leads nowhere"),
        ('<a href="b.html#down">b</a>', "b.html#down leads nowhere"),
        ('<img src="a.png" alt="a">', "a.png leads nowhere"),
        ('<img src="b.html">', "1 pictures without a text"),
        ("<h1>Again</h1>", "2 headings of the first level"),
        ("<p>a size of $\\sqrt d$</p>", "Markdown is left"),
    ],
)
def test_faults_of_a_page_are_seen(tmp_path, body, fault):
    (found,) = check_site.faults(written(tmp_path, body, ""))
    assert found.startswith("a.html: ") and fault in found


def test_pages_that_search_does_not_know_are_seen(tmp_path):
    site = written(tmp_path, "", "")
    (site / "c.html").write_text(PAGE.format(""))
    (site / "look.css").write_text("@import 'https://fonts.org/x.css'")
    assert list(check_site.faults(site)) == [
        "look.css: asks another machine for a file",
        "c.html: search does not know it",
    ]


@pytest.mark.parametrize("name", ["conversion.svg", "folders.svg", "forward.svg"])
def test_drawings_are_those_of_the_code(name):
    drawn = (SITE.parent / "drawings" / name).read_text(encoding="utf-8")
    assert drawings.drawings()[name] == drawn, "run python docs/site/drawings.py"


def test_files_that_the_tours_name_exist():
    there = {path.name for path in SITE.parents[1].glob("[cht]*/**/*.py")}
    tours = [SITE.parent / "inside.md", *(SITE.parent / "drawings").glob("*.svg")]
    named = {name for tour in tours for name in re.findall(r"\w+\.py\b", tour.read_text("utf-8"))}
    assert len(named) > 30 and named <= there
