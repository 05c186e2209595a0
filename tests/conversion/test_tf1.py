"""Tensor bundles: what TensorFlow wrote is read bit by bit. What lies: test_tensor_bundle.py.

`tf1_partitioned` and `tf2_checkpoint` were written by TensorFlow 2.21: by tf.compat.v1's
Saver(sharded=True) over two devices with fixed_size_partitioner, and by tf.train.Checkpoint. Their
expected.npz is what its own reader gives, bfloat16 as uint16.
"""

import re
import shutil
import sys
import warnings
from pathlib import Path

import cramjam
import numpy as np
import pytest
import torch

from hf_bert_impl.conversion.readers import sstable
from hf_bert_impl.conversion.readers.tensor_bundle import slice_key
from hf_bert_impl.conversion.readers.tf1 import Tf1Reader, is_tf1
from hf_bert_impl.conversion.tensors import TensorInfo
from hf_bert_impl.conversion.writers.tf1 import write_tf1
from hf_bert_impl.errors import InputError
from tests.conversion.cases import FIXTURES, FORMATS, Memory, assert_same, bits

TF1 = FIXTURES / "tf1" / "bert_model.ckpt"
NUMPY = {torch.bfloat16: np.uint16}
read_all, refuse = FORMATS["tf1"].read_all, FORMATS["tf1"].refuse


def write(prefix, tensors):
    given = Memory(tensors)
    return write_tf1(prefix, given.tensors, given.read)


# --- what TensorFlow wrote -------------------------------------------------------------------


@pytest.mark.parametrize(
    "prefix", ["tf1_partitioned/model.ckpt-7", "tf2_checkpoint/ckpt-1"], ids=str
)
def test_partitioned_and_object_based_checkpoints(prefix):
    found = read_all(FIXTURES / prefix)
    with np.load((FIXTURES / prefix).with_name("expected.npz")) as expected:
        assert sorted(found) == sorted(expected)
        for name, tensor in found.items():
            dtype = NUMPY.get(tensor.dtype, expected[name].dtype)
            assert expected[name].dtype == dtype
            assert expected[name].shape == tuple(tensor.shape)
            assert expected[name].tobytes() == bits(tensor)


def test_what_is_listed():
    with Tf1Reader(FIXTURES / "tf2_checkpoint" / "ckpt-1") as reader:
        assert reader.format == "tf1"
        assert reader.software == "TensorFlow (tensor bundle, version 1)"
        names = list(reader.tensors)
        assert names == sorted(names)
        assert reader.tensors["_CHECKPOINTABLE_OBJECT_GRAPH"].dtype == "string"
        name = "model/brain/.ATTRIBUTES/VARIABLE_VALUE"
        assert reader.tensors[name] == TensorInfo(name, (3, 1, 2), "bfloat16")
        with pytest.raises(
            InputError, match=r"_OBJECT_GRAPH' of .* is of dtype 'string'; expected"
        ):
            reader.read("_CHECKPOINTABLE_OBJECT_GRAPH")
    with Tf1Reader(FIXTURES / "tf1_partitioned" / "model.ckpt-7") as reader:
        assert [file.name for file in reader.files] == [
            "model.ckpt-7.index",
            "model.ckpt-7.data-00000-of-00002",
            "model.ckpt-7.data-00001-of-00002",
        ]
        assert reader.tensors["cls/long"].shape == (300, 1)
        assert not [name for name in reader.tensors if "\0" in name]


@pytest.mark.parametrize("end", ["", ".index", ".data-00000-of-00001"])
def test_paths_that_mean_a_checkpoint(end):
    with Tf1Reader(TF1.with_name(TF1.name + end)) as reader:
        assert len(reader.tensors) == 139


def test_known_by_its_bytes(tmp_path):
    renamed = tmp_path / "weights.bin"
    shutil.copy(TF1.with_name("bert_model.ckpt.index"), renamed)
    shutil.copy(f"{TF1}.data-00000-of-00001", f"{renamed}.data-00000-of-00001")
    assert is_tf1(renamed)
    assert len(read_all(renamed)) == 139
    other = tmp_path / "other.index"
    other.write_bytes(b"[" * 100)
    assert not is_tf1(other)


def test_tensors_lie_in_the_file(tmp_path):
    index, _ = write(tmp_path / "m", {f"{i}": torch.full((3000, 5), i) for i in range(2)})
    with warnings.catch_warnings(), Tf1Reader(index) as reader:
        warnings.simplefilter("error")  # of torch, on memory that cannot be written to
        held = {name: reader.read(name) for name in reader.tensors}
        assert held["1"].data_ptr() - held["0"].data_ptr() == 3000 * 5 * 8
        assert reader.read("0").data_ptr() == held["0"].data_ptr()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's accounting")
def test_what_was_read_before_takes_no_memory(tmp_path):
    write(tmp_path / "m", {f"{i}": torch.zeros(1 << 20) for i in range(8)})

    def resident():
        status = Path("/proc/self/status").read_text()
        return int(re.search(r"RssFile:\s+(\d+) kB", status)[1]) << 10

    with Tf1Reader(tmp_path / "m") as reader:
        before = resident()
        held = [reader.read(name) for name in reader.tensors]
        assert (1 << 22) * 0.9 < resident() - before < (1 << 22) * 2
    assert len(held) == 8


@pytest.mark.parametrize("compressed", [True, False])
def test_index_of_several_blocks(tmp_path, compressed):
    tensors = {
        f"layer_{i % 97}/a_rather_long_name/of_a_variable_{i}": torch.full((i % 3,), i)
        for i in range(13001)
    }
    index, _ = write(tmp_path / "m", tensors)
    records = list(sstable.read_table(index))
    if compressed:
        size = index.stat().st_size
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sstable, "_write_block", write_snappy_block)
            sstable.write_table(index, records)
        assert index.stat().st_size < 0.6 * size
    else:
        assert index.stat().st_size > 1.2 * sstable.BLOCK_SIZE
        names = [key for key, _ in records]
        assert names == [b"", *sorted(name.encode() for name in tensors)]
    assert_same(read_all(tmp_path / "m"), tensors)


def write_snappy_block(file, block):
    offset = file.tell()
    content = bytes(cramjam.snappy.compress_raw(block.finish())) + bytes([sstable.SNAPPY])
    file.write(content + sstable.masked_crc32c(content).to_bytes(4, "little"))
    return sstable.varint(offset) + sstable.varint(len(content) - 1)


# As TensorFlow's SaveV2 writes them.
@pytest.mark.parametrize(
    ("name", "part", "key"),
    [
        ("cls/long", ((150, 150), (0, 1)), "00636c732f6c6f6e6700010102c096c0968081"),
        ("cls/long", ((8191, 8192),), "00636c732f6c6f6e6700010101dfffe02000"),
        ("cls/long", ((16383, 3617),), "00636c732f6c6f6e6700010101e03fffce21"),
        ("x", ((0, -1), (2, 1)), "007800010102807f8281"),
    ],
)
def test_keys_of_parts(name, part, key):
    assert slice_key(name.encode(), part).hex() == key


# --- what is written -------------------------------------------------------------------------


def test_no_tensor_at_all(tmp_path):
    write(tmp_path / "m", {})
    assert read_all(tmp_path / "m") == {}


@pytest.mark.parametrize("library", ["google_crc32c", "cramjam"])
def test_a_missing_library_is_named(tmp_path, monkeypatch, library):
    index, _ = write(tmp_path / "m", {"x" * 999: torch.zeros(3)})
    records = list(sstable.read_table(index))
    monkeypatch.setattr(sstable, "_write_block", write_snappy_block)
    sstable.write_table(index, records)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ValueError, match=rf"{library}, which is not .* -e '\.\[convert\]'"):
        Tf1Reader(tmp_path / "m")
