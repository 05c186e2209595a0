"""Looks at the built site as a browser does: `python docs/site/check_site.py build/site`.

Every link and anchor leads somewhere, no page asks another machine for anything, each has one
title, pictures have a text in their place, search knows every page, and no Markdown was left as it
is.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Attributes that a browser follows by itself, without a click.
LOADED = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src")}
#: Of a `link`, kinds that only name a place.
NAMED_ONLY = {"canonical", "next", "prev", "alternate"}
#: Where the text of these elements stands, Markdown is text.
VERBATIM = {"code", "pre", "script", "style", "math"}
#: What is left of Markdown that was not understood: links, headings, bold, lists and formulas.
LEFT_OVER = re.compile(r"\]\(|^#{1,6} |\*\*\w|^\s*- \w|\$\S[^$\n]*\$", re.MULTILINE)
VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}
IN_STYLE = re.compile(r"url\(\s*['\"]?(https?:)?//|@import\s+['\"]?(https?:)?//")


@dataclass
class Page(HTMLParser):
    """What a page holds."""

    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    headings: int = 0
    nameless_pictures: int = 0
    left_over: list[str] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.names |= {given[key] for key in ("id", "name") if key in given}
        self.headings += tag == "h1"
        self.nameless_pictures += tag == "img" and not given.get("alt")
        for key in ("href", "src"):
            if key in given:
                self.links.append(given[key])
                kinds = set(given.get("rel", "").split())
                if (tag, key) in LOADED and not kinds & NAMED_ONLY:
                    self.loaded.append(given[key])
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not VERBATIM & set(self._open) and (found := LEFT_OVER.search(data)):
            self.left_over.append(data[found.start() :].strip()[:60])


def read(file: Path) -> Page:
    page = Page()
    page.feed(file.read_text(encoding="utf-8"))
    return page


def faults(site: Path) -> Iterator[str]:
    """One line for everything that is wrong."""
    pages = {file.resolve(): read(file) for file in sorted(site.rglob("*.html"))}
    for file, page in pages.items():
        name = file.relative_to(site.resolve())
        if file.name == "404.html":
            continue  # its links begin at the root of the server
        if page.headings != 1:
            yield f"{name}: {page.headings} headings of the first level"
        if page.nameless_pictures:
            yield f"{name}: {page.nameless_pictures} pictures without a text in their place"
        yield from (f"{name}: asks another machine for {link}" for link in page.loaded if far(link))
        yield from (f"{name}: {link} leads nowhere" for link in dead(file, page, pages))
        yield from (f"{name}: Markdown is left: {text!r}" for text in page.left_over)
    for file in sorted(site.rglob("*.css")):
        if IN_STYLE.search(file.read_text(encoding="utf-8")):
            yield f"{file.relative_to(site)}: asks another machine for a file"
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"] if entry["text"]}
    for file in pages:
        place = file.relative_to(site.resolve()).as_posix()
        if place not in found | {"404.html"}:
            yield f"{place}: search does not know it"


def far(link: str) -> bool:
    """Whether a link leads to another machine."""
    return bool(urlsplit(link).netloc)


def dead(file: Path, page: Page, pages: dict[Path, Page]) -> Iterator[str]:
    """The links of a page to what the site does not have."""
    for link in sorted(set(page.links)):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
        target = target / "index.html" if target.is_dir() else target
        anchor = unquote(parts.fragment)
        if not target.is_file() or (
            anchor and target in pages and anchor not in pages[target].names
        ):
            yield link


def main(argv: list[str]) -> int:
    site = Path(argv[1])
    found = list(faults(site))
    number = len(list(site.rglob("*.html")))
    print("\n".join(found) or f"{number} pages, no fault: {site}/index.html")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
