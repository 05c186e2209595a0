"""The tests that a change needs."""

import pytest

from tests.affected import ROOT, TESTS, affected_by


@pytest.mark.parametrize(
    ("changed", "included"),
    [
        ("tests/model/cases.py", "parity/test_comparison.py training/test_finetuning.py"),
        ("tests/support/checkpoints.py", "test_auto.py cli/test_evaluate.py"),
        ("tests/training/conftest.py", "training/test_resumed.py"),
        ("setup.cfg", "test_packaging.py"),
        ("tests/fixtures/command_line/bad/null.jsonl", "cli/test_snapshots.py"),
        ("docs/fine-tune.md", "test_examples.py"),
        ("hf_bert_impl/training/launch.py", "training/test_distributed.py"),
    ],
)
def test_the_tests_of_a_change(changed, included):
    found = affected_by({ROOT / changed})
    assert {ROOT / "tests" / test for test in included.split()} <= {*found}
    assert len(found) < len(TESTS)


def test_what_all_tests_share_needs_all_of_them():
    assert affected_by({ROOT / "tests/conftest.py"}) == TESTS
