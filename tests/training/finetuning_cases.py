"""What the tests of fine-tuning share."""

from hf_bert_impl.tasks.base import Columns

COLUMNS = Columns("0", None, "1")


def assert_nothing_left(tmp_path):
    assert not [entry.name for entry in tmp_path.iterdir() if entry.name.startswith("out")]
