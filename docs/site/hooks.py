"""What the site has beside the pages of docs/, and links that lead to the site's places.

mkdocs calls the functions that are named `on_…`. Every text of the repository has links that are
right where it lies, on GitHub and in an editor; here each is changed to the page of the same text.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import latex2mathml.converter
from lesson_pages import fenced, lesson_page
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
#: Code is named last by a search.
LAST_FOUND = "---\nsearch:\n  boost: 0.1\n---\n\n"
LINK = re.compile(r"(?<=\]\()([^)\s#]+)")
#: A link to a text file that stands alone is followed by what the file holds.
TEXT_FILE = re.compile(r"^\[[^]]+\]\(([^)]+\.txt)\)$", re.MULTILINE)
FENCED = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[([](.*?)\\[)\]]</\1>', re.DOTALL)


def outside_docs() -> Iterator[tuple[str, str]]:
    """The files of the repository that the site shows, and their places on it."""
    yield "README.md", "index.md"
    yield "CONTRIBUTING.md", "contributing.md"
    yield "CHANGELOG.md", "changelog.md"
    yield "benchmarks/README.md", "benchmarks/measuring.md"
    yield "benchmarks/results", "benchmarks/results/index.md"
    yield "docs/site/site.css", "site.css"
    yield "notebooks/README.md", "lessons/index.md"
    for folder, place, pattern in (
        ("benchmarks/results", "benchmarks/results", "*"),
        ("notebooks/figures", "lessons/figures", "*.png"),
        ("notebooks", "lessons", "*.ipynb"),
        ("notebooks/lessons", "lessons/code", "*.py"),
    ):
        for path in sorted((ROOT / folder).glob(pattern)):
            page = path.with_suffix(".md").name if path.suffix in (".ipynb", ".py") else path.name
            yield f"{folder}/{path.name}", f"{place}/{page}"


#: From the place in the repository to that on the site, and back.
PLACES = dict(outside_docs())
SOURCES = {place: source for source, place in PLACES.items()}


def text_of(source: str) -> str:
    """The Markdown of a page."""
    path = ROOT / source
    if path.is_dir():
        names = "\n".join(
            f"- [{name.name}]({path.name}/{name.name})" for name in sorted(path.iterdir())
        )
        return f"# {source}\n\n{names}\n"
    if path.suffix == ".ipynb":
        return lesson_page(path)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return f"{LAST_FOUND}# {source}\n\n```python\n{text}```\n"
    return text


def on_files(files: Files, config: Any) -> Files:
    """Adds what lies outside of docs/."""
    for source, place in PLACES.items():
        if place.endswith(".md"):
            files.append(File.generated(config, place, content=text_of(source)))
        else:
            files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    return files


def site_link(link: str, source: str, place: str) -> str:
    """Where a link of a text leads on the site.

    Args:
        link: As it is written, without an anchor.
        source: The text's place in the repository.
        place: The text's place on the site.
    """
    if "://" in link or link.startswith("mailto:"):
        return link
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    target = PLACES.get(target, target.removeprefix("docs/"))
    return posixpath.relpath(target, posixpath.dirname(place) or ".")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Shows text files that are linked, and changes the links outside of blocks of code."""
    place = page.file.src_uri
    source = SOURCES.get(place, f"docs/{place}")

    def changed(text: str) -> str:
        text = text.replace("<details>", '<details markdown="1">')
        return LINK.sub(lambda link: site_link(link[0], source, place), text)

    def with_text(link: re.Match[str]) -> str:
        text = (ROOT / source).parent.joinpath(link[1]).read_text(encoding="utf-8")
        return f"{link[0]}\n\n{fenced(text.rstrip(), '{ .text .output }')}"

    markdown, parts, end = TEXT_FILE.sub(with_text, markdown), [], 0
    for block in FENCED.finditer(markdown):
        parts += [changed(markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, changed(markdown[end:])])


def on_page_content(html: str, **_: Any) -> str:
    """Writes formulas as MathML, which browsers draw without a script."""

    def drawn(formula: re.Match[str]) -> str:
        display = "block" if formula[1] == "div" else "inline"
        return latex2mathml.converter.convert(unescaped(formula[2]), display=display)

    return FORMULA.sub(drawn, html)


def unescaped(text: str) -> str:
    for name, sign in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        text = text.replace(name, sign)
    return text
