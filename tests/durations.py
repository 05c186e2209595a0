"""Writes the mean duration of a case of each test, for `--shard` and `--at-most`.

python -m pytest -m "" --junitxml=report.xml && python tests/durations.py report.xml
"""

import collections
import json
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
#: Shorter tests are not written and count as 0.1 s.
LEAST = 0.5


def seconds(report: Path) -> dict[str, float]:
    """Seconds of a case of each test of a report of `--junitxml`, the mean over its cases."""
    found: dict[str, list[float]] = collections.defaultdict(list)
    for case in ElementTree.parse(report).iter("testcase"):
        names = case.get("classname", "").split(".")
        classes: list[str] = []
        while names and not (ROOT / "/".join(names)).with_suffix(".py").is_file():
            classes.insert(0, names.pop())
        if names:
            test = case.get("name", "").split("[")[0]
            found["::".join(["/".join(names) + ".py", *classes, test])].append(
                float(case.get("time", 0))
            )
    means = {test: sum(times) / len(times) for test, times in found.items()}
    return {test: round(mean, 1) for test, mean in sorted(means.items()) if mean >= LEAST}


if __name__ == "__main__":
    text = json.dumps(seconds(Path(sys.argv[1])), indent=0)
    (ROOT / "tests/durations.json").write_text(text + "\n")
