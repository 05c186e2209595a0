"""Writes how long each test file took, from pytest's own report, for `--shard`.

python -m pytest -n 2 --junitxml=report.xml && python tests/durations.py report.xml
"""

import collections
import json
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]


def seconds(report: Path) -> dict[str, float]:
    """Seconds of each test file in a report of `--junitxml`."""
    found: collections.Counter[str] = collections.Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        words = case.get("classname", "").split(".")
        while words and not (ROOT / "/".join(words)).with_suffix(".py").is_file():
            words.pop()  # a class in the file
        if words:
            found["/".join(words) + ".py"] += float(case.get("time", 0))
    return {file: round(time, 1) for file, time in sorted(found.items())}


if __name__ == "__main__":
    text = json.dumps(seconds(Path(sys.argv[1])), indent=0)
    (ROOT / "tests/durations.json").write_text(text + "\n")
