"""The tests of a change, and the table of CONTRIBUTING.md."""

from pathlib import Path

from tests.affected import ROOT, affected_by, table


def test_the_affected_by_a_change():
    found = affected_by({ROOT / "hf_bert_impl/data/masking.py"})
    assert Path("tests/data/test_masking.py") in found
    assert Path("tests/data/test_pretraining_collator.py") in found  # it imports masking
    assert Path("tests/conversion/test_h5.py") not in found
    assert affected_by({ROOT / "tests/files/test_lock.py"}) == [Path("tests/files/test_lock.py")]


def test_the_table_of_contributing():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert "\n".join(table()) in text, "python tests/affected.py --table writes it anew"
