"""The tests that a change needs, and the table of them in CONTRIBUTING.md."""

import pytest

from tests.affected import IMPORTED, ROOT, affected_by, table


def test_the_table_of_contributing():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert "\n".join(table()) in text, "python tests/affected.py --table writes it anew"


@pytest.mark.parametrize(
    ("changed", "included"),
    [
        (
            "tests/model/cases.py",
            {"tests/parity/test_comparison.py", "tests/training/test_finetuning.py"},
        ),
        ("tests/support/checkpoints.py", {"tests/test_auto.py", "tests/cli/test_evaluate.py"}),
        ("tests/training/conftest.py", {"tests/training/test_pretraining_resumed.py"}),
        ("setup.cfg", {"tests/test_packaging.py"}),
        ("tests/fixtures/command_line/bad/null.jsonl", {"tests/cli/test_snapshots.py"}),
        ("docs/fine-tune.md", {"tests/test_examples.py"}),
        ("hf_bert_impl/training/launch.py", {"tests/training/test_finetuning_distributed.py"}),
    ],
)
def test_the_tests_of_a_change(changed, included):
    found = {str(test) for test in affected_by({ROOT / changed})}
    assert included <= found and len(found) < len(IMPORTED)


def test_what_all_tests_share_needs_all_of_them():
    assert affected_by({ROOT / "tests/conftest.py"}) == [*IMPORTED]
