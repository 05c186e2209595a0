"""The contract of all readers: the tensors of the format's own library, or one clear error.

The checkpoints were written by the original software. They are read here, cut, changed and mixed
up. test_damages has files that lie.
"""

import json
import os
import random
import shutil
from pathlib import Path
from typing import NamedTuple

import msgpack
import numpy as np
import pytest
import torch

from hf_bert_impl.conversion.readers import sstable
from hf_bert_impl.conversion.readers.sharded import read_shard_index
from hf_bert_impl.errors import InputError
from tests.conversion.bundles import block, table
from tests.conversion.cases import (
    EVERY_FORMAT,
    FIXTURES,
    FORMATS,
    assert_same,
    refused,
)


class Case(NamedTuple):
    """A file that is damaged."""

    format: str
    file: str
    unprotected: int = 0
    """Bytes of names, shapes and places; 0 with checksums. Bits behind them are only numbers."""
    entry: str = ""
    """The opened file, if it is another one."""


CASES = {
    "safetensors": Case("safetensors", "hf_mlm_no_pooler/model.safetensors", 4000),
    "torch zip": Case("torch", "hf_legacy/pytorch_model.bin"),
    "torch legacy": Case("torch", "pytorch_pretrained_bert/pytorch_model.bin", 14_000),
    "torch module": Case("torch", "codertimo/torch1.0/bert.model.ep0", 14_000),
    "flax": Case("flax", "flax_sharded/flax_model-00002-of-00002.msgpack", 300),
    "h5": Case("h5", "tf2_h5_sharded/tf_model-00003-of-00007.h5", 2000),
    "tf1 index": Case("tf1", "tf1_sharded/bert_model.ckpt.index"),
    "tf1 objects": Case("tf1", "tf2_checkpoint/ckpt-1.index"),
    "tf1 data": Case(
        "tf1", "tf1_sharded/bert_model.ckpt.data-00001-of-00002", entry="bert_model.ckpt"
    ),
}
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
#: Indices of checkpoints in several files.
SHARDED = {
    "safetensors": "hf_safetensors_sharded/model.safetensors.index.json",
    "torch": "hf_legacy_sharded/pytorch_model.bin.index.json",
    "flax": "flax_sharded/flax_model.msgpack.index.json",
    "h5": "tf2_h5_sharded/tf_model.h5.index.json",
}


@pytest.fixture
def copied(tmp_path):
    """A copy of a case's checkpoint: its reader, the damaged file, and the opened one."""

    def copy(case):
        folder = (FIXTURES / case.file).parent
        file = shutil.copytree(folder, tmp_path / "copy") / Path(case.file).name
        return FORMATS[case.format], file, file.with_name(case.entry or file.name)

    return copy


# --- whole files -----------------------------------------------------------------------------

#: Read by code of ours. One folder has the output of TensorFlow's own reader. test_torch reads
#: pickled modules.
ORIGINALS = {
    f"{path.parent.name}/{path.name}": (form, path)
    for form, pattern in (("torch", "*.bin"), ("tf1", "tf2_checkpoint/*.index"))
    for path in sorted(FIXTURES.rglob(pattern))
} | {
    f"codertimo/{name}": ("torch", FIXTURES / "codertimo" / name)
    for name in ("bert.state_dict.pt", "bertlm.state_dict.pt", "torch1.0/bert.state_dict.pt")
}


@pytest.mark.parametrize(("form", "path"), ORIGINALS.values(), ids=ORIGINALS)
def test_equals_the_formats_own_library(form, path):
    given = FORMATS[form]
    assert given.is_file(path)
    found, expected = given.read_all(path), given.library(path)
    assert_same(found, expected)
    assert list(found) == list(expected)
    whole = given.read(path)
    assert whole.format == form
    assert path in whole.files


@EVERY_FORMAT
def test_signatures(form):
    """Every file of the format is known by its content, and none of another one."""
    files = [path for path in FIXTURES.rglob("*") if path.is_file()]
    found = [path for path in files if form.is_file(path)]
    assert found == [path for path in files if path.suffix in form.suffixes]


@EVERY_FORMAT
def test_no_file(form, tmp_path):
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    (tmp_path / "empty").touch()
    for name in ("pipe", "empty", "nothing", "", "x" * 5000, "a\0b", "nothing.json"):
        with pytest.raises(InputError):
            form.read(tmp_path / name)
        assert not form.is_file(tmp_path / name)


def test_flax_arrays_in_pieces(tmp_path):
    """As flax.serialization cuts: flat, as many elements as fit, the last piece shorter."""

    def array(values):
        content = msgpack.packb((values.shape, values.dtype.name, values.tobytes()))
        return msgpack.ExtType(1, content)

    values, path = np.arange(35, dtype="f4").reshape(5, 7), tmp_path / "pieces.msgpack"
    pieces = {str(n): array(values.reshape(-1)[12 * n : 12 * n + 12]) for n in (2, 0, 1)}
    tree = {"chunks": pieces, "shape": {"0": 5, "1": 7}, "__msgpack_chunked_array__": True}
    path.write_bytes(msgpack.packb({"a": {"b": tree}, "d": tree}))
    whole = torch.from_numpy(values)
    assert_same(FORMATS["flax"].read_all(path), {"a/b": whole, "d": whole})


# --- damage ----------------------------------------------------------------------------------


@EVERY
def test_truncated(case, copied):
    form, file, entry = copied(case)
    content = file.read_bytes()
    size = len(content)
    for end in {*range(20), *range(0, size, max(1, size // 13)), size - 5, size - 1}:
        file.write_bytes(content[:end])
        form.refuse(entry)
    file.unlink()
    form.refuse(entry)


@EVERY
def test_flipped_bits(case, copied):
    """Each is an error, or has no effect; without checksums it may change a name or number."""
    form, file, entry = copied(case)
    rng = random.Random(0)
    expected, content, refused = form.read_all(entry), file.read_bytes(), 0
    for _ in range(40):
        flipped = bytearray(content)
        flipped[rng.randrange(case.unprotected or len(content))] ^= 1 << rng.randrange(8)
        file.write_bytes(flipped)
        try:
            tensors = form.read_all(entry)
        except InputError as error:
            assert "\n" not in str(error)
            refused += 1
        else:
            if not case.unprotected:
                assert_same(tensors, expected)
    assert refused >= (2 if case.unprotected else 20)


# --- several files ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SHARDED)
def test_shards_that_do_not_fit_their_index(kind, tmp_path):
    form, index = FORMATS[kind], FIXTURES / SHARDED[kind]
    path = shutil.copytree(index.parent, tmp_path / "shards") / index.name
    table = json.loads(path.read_text())
    weight_map = table["weight_map"]

    def refuse(match):
        path.write_text(json.dumps(table))
        return form.refuse(path, match)

    shards = sorted({*weight_map.values()})
    assert form.read(path).files == (path, *map(path.with_name, shards))
    name = next(iter(weight_map))
    stored = name.partition("/")[2] if kind == "h5" else name
    home = weight_map.pop(name)
    refuse(f"differ on 1 tensors .'{stored}'")
    other = next(file for file in weight_map.values() if file != home)
    weight_map[name] = other
    refuse(f"differ on .*'{stored}'")
    weight_map[name] = home
    shutil.copy(path.parent / home, path.parent / other)
    refuse("both .* have ")
    (path.parent / other).unlink()
    refuse(other)


def test_links_of_an_index(tmp_path):
    """They stay in the folder, or lead into the blobs/ of the hub's cache, as the index does."""
    blobs, revision = tmp_path / "blobs", tmp_path / "snapshots" / "0a1b"
    for folder in (blobs, revision):
        folder.mkdir(parents=True)
    for file in (blobs / "5e", revision / "two.bin", tmp_path / "outside.bin"):
        file.write_bytes(b"1")
    weight_map = {"b": "two.bin", "a": "one.bin", "c": "two.bin", "d": "link.bin"}
    (blobs / "6f").write_text(json.dumps({"weight_map": weight_map}))
    index = revision / "model.bin.index.json"
    index.symlink_to("../../blobs/6f")
    (revision / "one.bin").symlink_to("../../blobs/5e")
    (revision / "link.bin").symlink_to("two.bin")
    found = read_shard_index(index)
    assert found == {name: revision / file for name, file in weight_map.items()}
    assert list(found) == ["b", "a", "c", "d"]
    (revision / "one.bin").unlink()
    (revision / "one.bin").symlink_to(tmp_path / "outside.bin")
    refused(lambda: read_shard_index(index), "is a link to another folder")


# --- TensorFlow's bundles --------------------------------------------------------------------


def test_an_index_of_several_blocks(tmp_path):
    records = [(f"layer_{i:04}/a_rather_long_name".encode(), b"x" * i) for i in range(999)]
    parts = [records[start : start + 100] for start in range(0, 999, 100)]
    table(tmp_path / "m.index", *(block(*((0, *record) for record in part)) for part in parts))
    assert list(sstable.read_table(tmp_path / "m.index")) == records


def test_data_files_that_are_missing(tmp_path):
    folder = shutil.copytree(FIXTURES / "tf1_sharded", tmp_path / "copy")
    data = folder / "bert_model.ckpt.data-00001-of-00002"
    data.unlink()
    for make in (Path.exists, Path.mkdir, os.mkfifo):  # opening a pipe would wait for a writer
        make(data)
        assert f"{data} is missing" in FORMATS["tf1"].refuse(folder / "bert_model.ckpt")
        if data.is_dir():
            data.rmdir()


def test_a_partitioned_variable():
    """By tf.compat.v1's Saver(sharded=True) of TensorFlow 2.21 with fixed_size_partitioner."""
    words = "is a partitioned variable; save it again"
    FORMATS["tf1"].refuse(FIXTURES / "tf1_partitioned/model.ckpt-7", words)
