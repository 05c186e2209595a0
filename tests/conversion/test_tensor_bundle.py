"""Tensor bundles of TensorFlow are read. test_damages has what is refused.

`tf1_partitioned` and `tf2_checkpoint` were written by TensorFlow 2.21: by tf.compat.v1's
Saver(sharded=True) over two devices with fixed_size_partitioner, and by tf.train.Checkpoint.
"""

import os
import shutil
from pathlib import Path

from hf_bert_impl.conversion.readers import sstable
from tests.conversion.bundles import block, table
from tests.conversion.cases import FIXTURES, FORMATS

SHARDED = FIXTURES / "tf1_sharded" / "bert_model.ckpt"
refuse = FORMATS["tf1"].refuse


def test_index_of_several_blocks(tmp_path):
    records = [(f"layer_{i:04}/a_rather_long_name".encode(), b"x" * i) for i in range(999)]
    parts = [records[start : start + 100] for start in range(0, 999, 100)]
    blocks = [block(*((0, key, value) for key, value in part)) for part in parts]
    table(tmp_path / "m.index", *blocks)
    assert list(sstable.read_table(tmp_path / "m.index")) == records


def test_missing_files(tmp_path):
    folder = shutil.copytree(SHARDED.parent, tmp_path / "copy")
    data = folder / "bert_model.ckpt.data-00001-of-00002"
    data.unlink()
    for make in (Path.exists, Path.mkdir, os.mkfifo):  # opening a pipe would wait for a writer
        make(data)
        assert f"{data} is missing" in refuse(folder / SHARDED.name)
        if data.is_dir():
            data.rmdir()


def test_a_partitioned_variable():
    refuse(FIXTURES / "tf1_partitioned/model.ckpt-7", "is a partitioned variable; save it again")
