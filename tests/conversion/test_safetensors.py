"""Safetensors: tables that lie are refused, and it is written as the library writes it."""

import json
import struct

import pytest
import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import load_file, save_file

from hf_bert_impl.conversion.readers.safetensors import SafetensorsReader, is_safetensors
from hf_bert_impl.conversion.tensors import DTYPES
from hf_bert_impl.conversion.writers.safetensors import write_safetensors
from tests.conversion.cases import FIXTURES, FORMATS, Memory, assert_same

#: Names whose order and whose JSON are easy to get wrong.
NAMES = ('"', "\\", "\n\t\x07\x7f", "ż", "é", "🙂", "\uffee", "B", "a", "A.b", "a.1", "a.10", "a.2")
read_all, refuse = FORMATS["safetensors"].read_all, FORMATS["safetensors"].refuse


# --- lies ------------------------------------------------------------------------------------


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


ONE = json.dumps(entry())
#: The table, and its length where that lies; behind it come eight bytes of numbers.
LIES = {
    "length of one more": ({"a": entry()}, 64),
    "vast length": ({"a": entry()}, (1 << 64) - 1),
    "beyond the file": ({"a": entry(offsets=(0, 16))}, None),
    "hole": ({"a": entry(offsets=(4, 8), shape=(1,))}, None),
    "negative": ({"a": entry(offsets=(-8, 0))}, None),
    "overflow": ({"a": entry(offsets=(0, 1 << 64))}, None),
    "other shape": ({"a": entry(shape=(3,))}, None),
    "vast shape": ({"a": entry(shape=(1 << 62, 1 << 62))}, None),
    "vast and 0": ({"a": entry(shape=(0, 1 << 62, 4), offsets=(0, 0)), "b": entry()}, None),
    "dtype": ({"a": entry(dtype="F33")}, None),
    "twice the same bytes": ({"a": entry(), "b": entry()}, None),
    "metadata": ({"__metadata__": {"format": 5}, "a": entry()}, None),
    "nested": (b'{"a": ' * 100_000, None),
    "no UTF-8": (b"\xff" * 9, None),
    "name twice": (f'{{"a": {ONE}, "\\u0061": {ONE}}}'.encode(), None),
}


@pytest.mark.parametrize(("table", "length"), LIES.values(), ids=LIES)
def test_table_that_lies(table, length, tmp_path):
    header = table if isinstance(table, bytes) else json.dumps(table).encode()
    path = tmp_path / "bad.safetensors"
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header)
    with path.open("ab") as file:
        file.write(bytes(8))
    line = refuse(path)
    assert "twice" in line or b"\\u0061" not in header
    assert length is None or is_safetensors(path) == (length < 100)


@pytest.mark.parametrize("spaces", range(8))
def test_numbers_anywhere(spaces, tmp_path):
    """Tables of old files have any length."""
    header = json.dumps({"a": entry()}).encode() + b" " * spaces
    path = tmp_path / "old.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<2f", 1, 2))
    with SafetensorsReader(path) as reader:
        found = reader.read("a")
        assert found.tolist() == [1, 2]
        assert found.data_ptr() % 4 == 0


# --- writing ---------------------------------------------------------------------------------


def write(folder, state, **options):
    given = Memory(state)
    return write_safetensors(folder, given.tensors, given.read, **options)


def random_state():
    """Every dtype, in an order that is no file's."""
    torch.manual_seed(0)
    state = {f"layer.{dtype}": torch.randn(3, 5).to(DTYPES[dtype]) for dtype in sorted(DTYPES)}
    state |= {name: torch.randn(1 + place) for place, name in enumerate(NAMES)}
    state |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(4, 0), "zero": torch.tensor(0)}
    return state


@pytest.mark.parametrize("make", [random_state, dict], ids=["every dtype", "none"])
def test_writes_what_the_library_writes(make, tmp_path):
    state = make()
    save_file(state, tmp_path / "library.safetensors", metadata={"format": "pt"})
    for order in (state, dict(reversed(state.items()))):
        (written,) = write(tmp_path, order)
        assert written.read_bytes() == (tmp_path / "library.safetensors").read_bytes()
    assert_same(read_all(written), state)


@pytest.mark.parametrize("size", [1000, 4096, 7680, 50_000, 10**9])
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
