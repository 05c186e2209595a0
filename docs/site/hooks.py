"""Adds the pages outside of docs/ to the site, and corrects the links of all pages.

mkdocs calls the functions named `on_…`. Links in a text are right in the repository; here each
becomes a link to the page that shows the same file, or to the file in the public repository.
"""

from __future__ import annotations

import configparser
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import latex2mathml.converter
from command_pages import commands_page
from lesson_pages import fenced, gallery, lesson_page, pictures
from mkdocs.structure.files import File, Files

import hf_bert_impl

ROOT = Path(__file__).parents[2]
#: Search lists code last.
LAST_FOUND = "---\nsearch:\n  boost: 0.1\n---\n\n"
LINK = re.compile(r"(?<=\]\()([^)\s#]+)")
#: A paragraph that only links to a text file is followed by the file's content.
TEXT_FILE = re.compile(r"^\[[^]]+\]\(([^)]+\.txt)\)$", re.MULTILINE)
#: A paragraph that is a picture.
PICTURE = re.compile(r"^!\[[^]]*\]\(([^)\s]+)\)$", re.MULTILINE)
FENCED = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[([](.*?)\\[)\]]</\1>', re.DOTALL)
COMMANDS = "reference/commands.md"


def outside_docs() -> Iterator[tuple[str, str]]:
    """The files of the repository that the site shows, and their places on it."""
    yield "docs/site/home.md", "index.md"
    yield "docs/site/command_pages.py", COMMANDS
    yield "CONTRIBUTING.md", "contributing.md"
    yield "CHANGELOG.md", "changelog.md"
    yield "benchmarks/README.md", "benchmarks/measuring.md"
    yield "benchmarks/results", "benchmarks/results/index.md"
    yield "docs/site/site.css", "site.css"
    yield "docs/site/iframe-worker.js", "iframe-worker.js"
    yield "notebooks/README.md", "lessons/index.md"
    for folder, place, pattern in (
        ("benchmarks/results", "benchmarks/results", "*"),
        ("notebooks", "lessons", "*.ipynb"),
        ("notebooks", "lessons/code", "bert.py"),
        ("notebooks/lessons", "lessons/code", "*.py"),
    ):
        for path in sorted((ROOT / folder).glob(pattern)):
            page = path.with_suffix(".md").name if path.suffix in (".ipynb", ".py") else path.name
            yield f"{folder}/{path.name}", f"{place}/{page}"


#: From the place in the repository to that on the site, and back.
PLACES = dict(outside_docs())
SOURCES = {place: source for source, place in PLACES.items()}


def on_config(config: Any) -> Any:
    """Takes the address of the repository from setup.cfg, and names the version."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    config.repo_url = setup["metadata"]["url"]
    config.repo_name = "hf_bert_impl"
    config.copyright = (
        f'hf_bert_impl <a href="{config.repo_url}/releases">{hf_bert_impl.__version__}</a>'
    )
    # mkdocstrings' links to sources.
    os.environ["GRIFFE_GIT_REMOTE_URL"] = config.repo_url
    os.environ["GRIFFE_GIT_SERVICE"] = "github"
    os.environ["GRIFFE_GIT_COMMIT_HASH"] = "main"
    return config


def text_of(source: str) -> str:
    """The Markdown of a page."""
    path = ROOT / source
    if path.is_dir():
        names = "\n".join(
            f"- [{name.name}]({path.name}/{name.name})" for name in sorted(path.iterdir())
        )
        return f"# {source}\n\n{names}\n"
    if PLACES[source] == COMMANDS:
        return commands_page()
    if path.suffix == ".ipynb":
        return lesson_page(path)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return f"{LAST_FOUND}# {source}\n\n```python\n{text}```\n"
    return gallery(text) if source == "notebooks/README.md" else text


def on_files(files: Files, config: Any) -> Files:
    """Adds the files outside of docs/."""
    for source, place in PLACES.items():
        if place.endswith(".md"):
            files.append(File.generated(config, place, content=text_of(source)))
        else:
            files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for name, picture in pictures(notebook).items():
            files.append(File.generated(config, f"lessons/{name}", content=picture))
    return files


def source_of(page: Any) -> str:
    return SOURCES.get(page.file.src_uri, f"docs/{page.file.src_uri}")


def site_link(link: str, source: str, place: str, repository: str) -> str:
    """The link of a text as a link of the site.

    Args:
        link: The link without its anchor.
        source: The text's place in the repository.
        place: The text's place on the site.
        repository: The address of the public repository.
    """
    if "://" in link or link.startswith("mailto:"):
        return link
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if target in PLACES:
        target = PLACES[target]
    elif target.startswith("docs/"):
        target = target.removeprefix("docs/")
    elif (ROOT / target).exists():
        return f"{repository}/blob/main/{target}"
    else:  # a generated file, such as a stored picture
        return link
    return posixpath.relpath(target, posixpath.dirname(place) or ".")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Shows linked text files, corrects links outside of code, and links to the page's source."""
    place, source = page.file.src_uri, source_of(page)
    page.edit_url = f"{config.repo_url}/edit/main/{source}"

    def corrected(text: str) -> str:
        text = text.replace("<details>", '<details markdown="1">')
        # The link opens a picture large, because a phone shows it at a third of its width.
        text = PICTURE.sub(r"[\g<0>](\1)", text)
        return LINK.sub(lambda link: site_link(link[0], source, place, config.repo_url), text)

    def with_text(link: re.Match[str]) -> str:
        text = (ROOT / source).parent.joinpath(link[1]).read_text(encoding="utf-8")
        return f"{link[0]}\n\n{fenced(text.rstrip(), '{ .text .output }')}"

    markdown, parts, end = TEXT_FILE.sub(with_text, markdown), [], 0
    for block in FENCED.finditer(markdown):
        parts += [corrected(markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, corrected(markdown[end:])])


def on_page_content(html: str, **_: Any) -> str:
    """Writes formulas as MathML, which browsers draw without a script."""

    def drawn(formula: re.Match[str]) -> str:
        tag, display = formula[1], "block" if formula[1] == "div" else "inline"
        math = latex2mathml.converter.convert(unescaped(formula[2]), display=display)
        return f'<{tag} class="formula">{math}</{tag}>'

    return FORMULA.sub(drawn, html)


def unescaped(text: str) -> str:
    for name, sign in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        text = text.replace(name, sign)
    return text
