"""The table of CONTRIBUTING.md: which tests a change needs."""

from tests.affected import ROOT, table


def test_the_table_of_contributing():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert "\n".join(table()) in text, "python tests/affected.py --table writes it anew"
