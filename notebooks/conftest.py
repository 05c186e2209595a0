"""`make notebooks`: a full run on real data leaves in each notebook what its cells print."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from lessons import claims, outputs


def pytest_configure(config: pytest.Config) -> None:
    config.option.overwrite = claims.STRICT


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
