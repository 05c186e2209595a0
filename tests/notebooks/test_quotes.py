"""A number that a lesson's text quotes is in the stored outputs, in the code, or from a paper."""

import json
import re
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
#: Formulas, code, links, solutions, lists of sources, and places in papers.
NOT_QUOTED = re.compile(
    r"\$\$.*?\$\$|\$.*?\$|```.*?```|`[^`]*`|\]\([^)]*\)|<details>.*?</details>"
    r"|#+ (?:Sources|Exercises).*|(?:sections?|figures?|equations?|tables?) [\d. and]+",
    re.DOTALL,
)
#: A decimal number, or a percentage or points with any number.
QUOTED = re.compile(r"(?<![\w.,-])(\d[\d,]*\.\d+)(?![\w.])|(?<![\w.,-])(\d[\d,]*)(?= ?%| points)")
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
#: Numbers of papers and of the world, by lesson.
ELSEWHERE = {
    "04": {"3.3"},  # billion words of BERT's training, Devlin et al. (2019)
    "10": {"1.15"},  # a version of TensorFlow
    "11": {"34", "62"},  # the cost on GPUs, He et al. (2025)
}


def quotes(notebook):
    text = "\n".join(
        "".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown"
    )
    for match in QUOTED.finditer(NOT_QUOTED.sub(" ", text)):
        yield match[1] or match[2]


def known(notebook):
    """The numbers of outputs and code, also in percent and in millions."""
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        texts = ["".join(cell["source"])]
        for output in cell["outputs"]:
            texts.append("".join(output.get("text", "")))
            html = "".join(output.get("data", {}).get("text/html", ""))
            texts.append(re.sub(r"<[^>]*>", " ", "" if "<iframe" in html else html))
        for text in texts:
            for number in NUMBER.findall(text):
                value = abs(float(number.replace(",", "")))
                yield from (value, 100 * value, value / 1e6)


@pytest.mark.parametrize("file", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda file: file.stem)
def test_quoted_numbers_are_stored(file):
    notebook = json.loads(file.read_text(encoding="utf-8"))
    values = set(known(notebook))
    missing = []
    for quote in dict.fromkeys(quotes(notebook)):
        digits = len(quote.partition(".")[2])
        value = float(quote.replace(",", ""))
        is_stored = any(abs(value - other) <= 0.5 * 10**-digits + 1e-9 for other in values)
        if not is_stored and quote not in ELSEWHERE.get(file.stem[:2], ()):
            missing.append(quote)
    assert not missing, f"{file.name} quotes {missing}, which no output has"
