"""Safetensors: read as the library reads it, or refused; and written as the library writes it."""

import json
import shutil
import struct

import pytest
import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from hf_bert_impl.conversion.readers.safetensors import SafetensorsReader, is_safetensors
from hf_bert_impl.conversion.tensors import DTYPES
from hf_bert_impl.conversion.writers.safetensors import write_safetensors
from hf_bert_impl.errors import InputError
from tests.conversion.cases import FIXTURES, FORMATS, Memory, assert_same

FILES = sorted(path.relative_to(FIXTURES) for path in FIXTURES.rglob("*.safetensors"))
SHARDED = FIXTURES / "hf_safetensors_sharded" / "model.safetensors.index.json"
#: Names whose order and whose JSON are easy to get wrong.
NAMES = ('"', "\\", "\n\t\x07\x7f", "ż", "é", "🙂", "\uffee", "B", "a", "A.b", "a.1", "a.10", "a.2")
read_all, refuse = FORMATS["safetensors"].read_all, FORMATS["safetensors"].refuse


def random_state():
    """Every dtype, in an order that is no file's."""
    torch.manual_seed(0)
    state = {f"layer.{dtype}": torch.randn(3, 5).to(DTYPES[dtype]) for dtype in sorted(DTYPES)}
    state |= {name: torch.randn(1 + place) for place, name in enumerate(NAMES)}
    state |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(4, 0), "zero": torch.tensor(0)}
    return state


# --- reading ---------------------------------------------------------------------------------


@pytest.mark.parametrize("file", FILES, ids=str)
def test_equals_the_library(file):
    path = FIXTURES / file
    assert is_safetensors(path)
    assert_same(read_all(path), load_file(path))
    with SafetensorsReader(path) as reader, safe_open(path, "pt") as library:
        assert list(reader.tensors) == library.offset_keys()
        assert reader.files == (path,)
        assert reader.format == "safetensors"
        assert reader.software == "safetensors, metadata format 'pt'"


def test_every_dtype(tmp_path):
    state = random_state()
    save_file(state, tmp_path / "all.safetensors")
    assert_same(read_all(tmp_path / "all.safetensors"), state)
    with SafetensorsReader(tmp_path / "all.safetensors") as reader:
        assert reader.software is None


@pytest.mark.parametrize("spaces", range(8))
def test_numbers_anywhere(spaces, tmp_path):
    """Tables of old files have any length."""
    table = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    header = json.dumps(table).encode() + b" " * spaces
    path = tmp_path / "old.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<2f", 1, 2))
    with SafetensorsReader(path) as reader:
        found = reader.read("a")
        assert found.tolist() == [1, 2]
        assert found.data_ptr() % 4 == 0


def test_many_missing_tensors_are_one_short_line(tmp_path):
    shutil.copy(SHARDED, tmp_path)
    for file in SHARDED.parent.glob("*.safetensors"):
        save_file({}, tmp_path / file.name)
    with pytest.raises(InputError, match="and 41 more in files that do not have") as raised:
        SafetensorsReader(tmp_path / SHARDED.name)
    assert len(str(raised.value)) < 700


# --- lies ------------------------------------------------------------------------------------


def lying(path, table, numbers=b"", length=None):
    header = table if isinstance(table, bytes) else json.dumps(table).encode()
    length = len(header) if length is None else length
    path.write_bytes(struct.pack("<Q", length) + header + numbers)
    return path


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize("length", [0, 1, 62, 64, 1000, 1 << 31, 1 << 40, 1 << 62, (1 << 64) - 1])
def test_table_length_that_lies(length, tmp_path):
    path = lying(tmp_path / "bad.safetensors", {"a": entry()}, bytes(8), length)
    refuse(path)
    assert is_safetensors(path) == (length < 100)


def test_more_numbers_than_the_table_has(tmp_path):
    refuse(lying(tmp_path / "bad.safetensors", {"a": entry()}, bytes(9)))


@pytest.mark.parametrize(
    "table",
    [
        {"a": entry(offsets=(0, 16))},
        {"a": entry(offsets=(8, 16))},
        {"a": entry(offsets=(4, 8))},
        {"a": entry(offsets=(8, 0))},
        {"a": entry(offsets=(-8, 0))},
        {"a": entry(offsets=(0, 1 << 63))},
        {"a": entry(offsets=(0, 1 << 64))},
        {"a": entry(offsets=(0,))},
        {"a": entry(shape=(3,))},
        {"a": entry(shape=(-2,))},
        {"a": entry(shape=(1 << 62, 1 << 62))},
        {"a": entry(shape=(0, 1 << 62, 4), offsets=(0, 0)), "b": entry()},
        {"a": entry(dtype="F33")},
        {"a": entry(dtype=None)},
        {"a": {}},
        {"a": None},
        {"a": entry(), "b": entry()},
        {"a": entry(), "b": entry(offsets=(4, 12))},
        {},
        {"__metadata__": {"format": 5}, "a": entry()},
        {"__metadata__": [], "a": entry()},
        [],
        b"",
        b"{",
        b"null",
        b'{"a": ' * 100_000,
        b"[" * 100_000,
        b"\xff" * 9,
    ],
    ids=lambda table: str(table)[:60],
)
def test_table_that_lies(table, tmp_path):
    refuse(lying(tmp_path / "bad.safetensors", table, bytes(8)))


def test_names_that_stand_twice(tmp_path):
    path = tmp_path / "bad.safetensors"
    one = json.dumps(entry())
    refuse(
        lying(path, f'{{"a": {one}, "a": {one}}}'.encode(), bytes(8)),
        "its table has 'a' twice",
    )
    other = json.dumps(entry(dtype="I32"))
    refuse(lying(path, f'{{"a": {one}, "\\u0061": {other}}}'.encode(), bytes(8)), "'a' twice")
    metadata = '"__metadata__": {"format": "pt"}'
    table = f'{{{metadata}, {metadata}, "a": {one}}}'.encode()
    refuse(lying(path, table, bytes(8)))


# --- writing ---------------------------------------------------------------------------------


def write(folder, state, **options):
    given = Memory(state)
    return write_safetensors(folder, given.tensors, given.read, **options)


@pytest.mark.parametrize(
    "make",
    [random_state, dict, lambda: {"a": torch.zeros(0)}, lambda: {"a": torch.tensor(1)}],
    ids=["every dtype", "none", "empty", "scalar"],
)
def test_writes_what_the_library_writes(make, tmp_path):
    state = make()
    save_file(state, tmp_path / "library.safetensors", metadata={"format": "pt"})
    written = [tmp_path / "model.safetensors"]
    for order in (state, dict(reversed(state.items())), dict(sorted(state.items()))):
        assert list(write(tmp_path, order)) == written
        assert written[0].read_bytes() == (tmp_path / "library.safetensors").read_bytes()
    assert_same(read_all(written[0]), state)


@pytest.mark.parametrize("size", [1, 100, 1000, 4096, 10_000, 50_000, 10**9])
def test_shards_are_those_of_save_pretrained(size, tmp_path):
    state = load_file(FIXTURES / "hf_base_no_prefix" / "model.safetensors")
    expected = split_torch_state_dict_into_shards(state, max_shard_size=size)
    paths = write(tmp_path, state, max_shard_size=size)
    shards = paths[1:] if expected.is_sharded else paths
    assert [path.name for path in shards] == list(expected.filename_to_tensors)
    assert sorted(paths) == sorted(tmp_path.iterdir())
    for path in shards:
        assert set(load_file(path)) == set(expected.filename_to_tensors[path.name])
    if expected.is_sharded:
        assert paths[0] == tmp_path / "model.safetensors.index.json"
        index = json.loads(paths[0].read_text())
        assert index["weight_map"] == expected.tensor_to_filename
        assert index["metadata"] == expected.metadata
    assert_same(read_all(paths[0]), state)


def test_shard_that_is_just_full(tmp_path):
    state = {name: torch.zeros(10) for name in "cab"}
    paths = write(tmp_path, state, max_shard_size=80)
    assert [set(load_file(path)) for path in paths[1:]] == [{"c", "a"}, {"b"}]


def test_index_is_that_of_save_pretrained(tmp_path):
    index = json.loads(SHARDED.read_text())
    with SafetensorsReader(SHARDED) as reader:
        order = sorted(reader.tensors, key=lambda name: (index["weight_map"][name], name))
        tensors = {name: reader.tensors[name] for name in order}
        paths = write_safetensors(tmp_path, tensors, reader.read, max_shard_size=50_000)
    assert json.loads(paths[0].read_text()).keys() == index.keys()
    assert_same(read_all(paths[0]), read_all(SHARDED))
