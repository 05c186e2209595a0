"""The tests of a change, and the table of CONTRIBUTING.md."""

from pathlib import Path

import pytest

from tests.affected import ROOT, affected_by, table
from tests.conftest import shard


def test_the_affected_by_a_change():
    found = affected_by({ROOT / "hf_bert_impl/data/masking.py"})
    assert Path("tests/data/test_masking.py") in found
    assert Path("tests/data/test_pretraining_collator.py") in found  # it imports masking
    assert Path("tests/conversion/test_h5.py") not in found
    assert affected_by({ROOT / "tests/files/test_lock.py"}) == [Path("tests/files/test_lock.py")]


def test_the_table_of_contributing():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert "\n".join(table()) in text, "python tests/affected.py --table writes it anew"


def test_shards_are_whole_and_disjoint(request):
    items = request.session.items
    parts = [shard(items, f"{number}/3") for number in (1, 2, 3)]
    assert set().union(*parts) == set(items) and sum(map(len, parts)) == len(items)
    for wrong in ("0/3", "4/3", "x", "1"):
        with pytest.raises(pytest.UsageError, match="expected a part"):
            shard(items, wrong)
