"""Tensor bundles: what TensorFlow wrote is read bit by bit, what is written is what it writes.

`tf1_partitioned` and `tf2_checkpoint` were written by TensorFlow 2.21: by tf.compat.v1's
Saver(sharded=True) over two devices with fixed_size_partitioner, and by tf.train.Checkpoint. Their
expected.npz is what its own reader gives, bfloat16 as uint16.
"""

import gc
import re
import shutil
import sys
import warnings
import weakref
from pathlib import Path

import cramjam
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from hf_bert_impl.conversion.errors import ConversionError
from hf_bert_impl.conversion.readers import sstable
from hf_bert_impl.conversion.readers.tensor_bundle import slice_key
from hf_bert_impl.conversion.readers.tf1 import Tf1Reader, is_tf1
from hf_bert_impl.conversion.tensors import DTYPES, TensorInfo
from hf_bert_impl.conversion.writers.tf1 import write_tf1

FIXTURES = Path(__file__).parents[1] / "fixtures"
TF1 = FIXTURES / "tf1" / "bert_model.ckpt"
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
NUMPY = {torch.bfloat16: np.uint16}


def read_all(path):
    with Tf1Reader(path) as reader:
        return {
            name: reader.read(name) for name, info in reader.tensors.items() if info.dtype in DTYPES
        }


def write(prefix, tensors):
    infos = {
        name: TensorInfo(name, tuple(tensor.shape), DTYPE_NAMES[tensor.dtype])
        for name, tensor in tensors.items()
    }
    return write_tf1(prefix, infos, tensors.__getitem__)


def same_bits(one, other):
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and torch.equal(bits(one), bits(other))
    )


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def assert_same(found, expected):
    assert list(found) == sorted(expected, key=str.encode)
    assert [name for name in expected if not same_bits(found[name], expected[name])] == []


# --- what TensorFlow wrote -------------------------------------------------------------------


def test_shards_hold_the_bits_of_the_single_file():
    single, sharded = read_all(TF1), read_all(FIXTURES / "tf1_sharded" / "bert_model.ckpt")
    assert len(single) == 139
    slots = {name for name in single if name.endswith(("/adam_m", "/adam_v"))}
    assert set(single) - slots == set(sharded)
    assert all(same_bits(single[name], sharded[name]) for name in sharded)
    assert same_bits(single["global_step"], torch.tensor(1000))


def test_same_weights_as_in_safetensors():
    found = read_all(TF1)
    expected = load_file(FIXTURES / "hf_safetensors" / "model.safetensors")
    embeddings = "bert.embeddings.word_embeddings.weight"
    kernel = "bert.encoder.layer.1.intermediate.dense.weight"
    assert same_bits(found["bert/embeddings/word_embeddings"], expected[embeddings])
    assert same_bits(found["bert/encoder/layer_1/intermediate/dense/kernel"].t(), expected[kernel])
    assert same_bits(
        found["cls/seq_relationship/output_weights"], expected["cls.seq_relationship.weight"]
    )


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
            assert expected[name].tobytes() == bytes(bits(tensor).numpy())


def test_what_is_listed():
    with Tf1Reader(FIXTURES / "tf2_checkpoint" / "ckpt-1") as reader:
        assert reader.format == "tf1"
        assert reader.software == "TensorFlow (tensor bundle, version 1)"
        names = list(reader.tensors)
        assert names == sorted(names)
        assert reader.tensors["_CHECKPOINTABLE_OBJECT_GRAPH"].dtype == "string"
        name = "model/brain/.ATTRIBUTES/VARIABLE_VALUE"
        assert reader.tensors[name] == TensorInfo(name, (3, 1, 2), "bfloat16")
        with pytest.raises(ConversionError, match=r"_OBJECT_GRAPH' is of dtype string; expected"):
            reader.read("_CHECKPOINTABLE_OBJECT_GRAPH")
        with pytest.raises(ConversionError, match="has no tensor 'nosuch'"):
            reader.read("nosuch")
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
    assert not is_tf1(tmp_path)
    assert not is_tf1(tmp_path / "none")


def test_tensors_lie_in_the_file_and_outlive_the_reader(tmp_path):
    tensors = {f"{i}": torch.full((3000, 5), i) for i in range(4)}
    index, data = write(tmp_path / "m", tensors)
    content = data.read_bytes()
    with warnings.catch_warnings(), Tf1Reader(index) as reader:
        warnings.simplefilter("error")  # of torch, on memory that cannot be written to
        held = {name: reader.read(name) for name in reader.tensors}
        assert held["1"].data_ptr() - held["0"].data_ptr() == 3000 * 5 * 8
        assert reader.read("0").data_ptr() == held["0"].data_ptr()
        held["3"].zero_()
    assert_same({**held, "3": tensors["3"]}, tensors)
    assert data.read_bytes() == content


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


def test_tensors_that_are_not_aligned(tmp_path):
    tensors = {"a": torch.tensor(True), "b": torch.randn(3, 5, dtype=torch.float64)}
    write(tmp_path / "m", tensors)
    found = read_all(tmp_path / "m")
    assert found["b"].data_ptr() % 8 == 0
    assert_same(found, tensors)


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


@pytest.mark.parametrize(
    "prefix", [TF1, *(FIXTURES / f"tf1_{n}" / "model.ckpt-1000" for n in ("squad", "classifier"))]
)
def test_written_again_byte_for_byte(tmp_path, prefix):
    with Tf1Reader(prefix) as reader:
        files = write_tf1(tmp_path / prefix.name, reader.tensors, reader.read)
        assert [file.name for file in files] == [file.name for file in reader.files]
        assert all(
            a.read_bytes() == b.read_bytes() for a, b in zip(files, reader.files, strict=True)
        )
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_every_dtype_and_shape_there_and_back(tmp_path):
    tensors = {
        f"{dtype}/{shape}": torch.randint(-100, 100, shape, generator=generator(7)).to(
            DTYPES[dtype]
        )
        for dtype in DTYPES
        for shape in ((), (3,), (0, 4), (2, 3, 5), (5, 0))
    }
    tensors["transposed"] = torch.arange(15.0).reshape(3, 5).t()
    tensors["zażółć/東京"] = torch.tensor([float("nan"), -0.0, float("inf")])
    tensors["learned"] = torch.nn.Parameter(torch.randn(3, 7, generator=generator(8)))
    write(tmp_path / "m.ckpt", tensors)
    assert_same(read_all(tmp_path / "m.ckpt"), tensors)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def test_no_tensor_at_all(tmp_path):
    write(tmp_path / "m", {})
    assert read_all(tmp_path / "m") == {}


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_random_tensors_there_and_back(tmp_path_factory, data):
    names = data.draw(st.lists(st.text(min_size=1), unique=True, max_size=20))
    tensors = {}
    for name in names:
        if name.startswith("\0"):
            continue
        dtype = data.draw(st.sampled_from(list(DTYPES.values())))
        shape = data.draw(st.lists(st.integers(0, 4), max_size=4))
        seed = generator(data.draw(st.integers(0, 99)))
        raw = torch.randint(
            0,
            2 if dtype is torch.bool else 256,
            (int(np.prod(shape)) * 8,),
            dtype=torch.uint8,
            generator=seed,
        )
        tensors[name] = raw.view(dtype)[: int(np.prod(shape))].reshape(shape)
    prefix = tmp_path_factory.mktemp("random") / "m"
    write(prefix, tensors)
    assert_same(read_all(prefix), tensors)


def test_one_tensor_in_memory_at_a_time(tmp_path):
    alive = weakref.WeakSet()
    most = 0

    def read(name):
        nonlocal most
        gc.collect()
        most = max(most, len(alive))
        tensor = torch.zeros(3, 5)
        alive.add(tensor)
        return tensor

    write_tf1(
        tmp_path / "m", {f"{i}": TensorInfo(f"{i}", (3, 5), "float32") for i in range(9)}, read
    )
    assert most == 1  # the one before, until the next is there


@pytest.mark.parametrize("name", ["", "\ud800", "\0x"])
def test_names_that_cannot_be_stored(tmp_path, name):
    with pytest.raises(ConversionError, match=r"has the name .*; name it otherwise"):
        write(tmp_path / "m", {name: torch.zeros(2), "a": torch.zeros(2)})
    assert not list(tmp_path.iterdir())


def test_tensors_that_cannot_be_stored(tmp_path):
    with pytest.raises(ConversionError, match="'text' is of dtype string"):
        write_tf1(tmp_path / "m", {"text": TensorInfo("text", (), "string")}, lambda name: None)
    assert not list(tmp_path.iterdir())
    info = {"x": TensorInfo("x", (2, 3), "float32")}
    for tensor in (torch.zeros(3, 2), torch.zeros(2, 3, dtype=torch.float64)):
        with pytest.raises(ConversionError, match=r"'x' is .*; expected float32 of shape \[2, 3\]"):
            write_tf1(tmp_path / "m", info, {"x": tensor}.__getitem__)


@pytest.mark.parametrize("library", ["google_crc32c", "cramjam"])
def test_a_missing_library_is_named(tmp_path, monkeypatch, library):
    index, _ = write(tmp_path / "m", {"x" * 999: torch.zeros(3)})
    records = list(sstable.read_table(index))
    monkeypatch.setattr(sstable, "_write_block", write_snappy_block)
    sstable.write_table(index, records)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConversionError, match=rf"{library} is not .* 'hf_bert_impl\[convert\]'"):
        Tf1Reader(tmp_path / "m")
