"""`make notebooks`: a full run on real data stores the outputs in the notebooks."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from lessons import claims, outputs

#: Started first, so that the processes end at about the same time.
LONGEST = (
    *("09_speed", "06_fine_tuning", "01_attention_seq2seq", "03_transformer"),
    *("08_looking_inside", "04_bert_from_scratch", "05_bert_in_practice"),
)


def pytest_configure(config: pytest.Config) -> None:
    config.option.overwrite = claims.STRICT
    # `figures.show` displays each picture; Jupyter's backend would add it again.
    os.environ["MPLBACKEND"] = "agg"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Restores a notebook that fails."""
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
