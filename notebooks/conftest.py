"""`make notebooks`: a full run on real data leaves in each notebook what its cells print."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from lessons import claims, outputs

#: They are begun first, so that no process is left to wait for a long one at the end.
LONGEST = (
    *("09_speed", "06_fine_tuning", "01_attention_seq2seq", "03_transformer"),
    *("08_looking_inside", "04_bert_from_scratch", "05_bert_in_practice"),
)


def pytest_configure(config: pytest.Config) -> None:
    config.option.overwrite = claims.STRICT
    # Pictures stay as files of `figures/`: none is drawn a second time into a cell.
    os.environ["MPLBACKEND"] = "agg"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A notebook that fails stays as it was."""
    before = item.path.read_bytes()
    try:
        yield
    except BaseException:
        item.path.write_bytes(before)
        raise
    if claims.STRICT:
        notebook = outputs.cleaned(json.loads(item.path.read_text(encoding="utf-8")))
        text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
        item.path.write_text(text, encoding="utf-8")
