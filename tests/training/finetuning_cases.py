"""What the tests of fine-tuning share."""

import json

from hf_bert_impl.tasks.base import Columns

COLUMNS = Columns("0", None, "1")


def assert_nothing_left(tmp_path):
    assert not [entry.name for entry in tmp_path.iterdir() if entry.name.startswith("out")]


def write_history(folder, task, splits, outputs, history):
    """In place of pictures: what the Trainer logged, the loss of each step among it."""
    (folder / "history.json").write_text(json.dumps(history))
