"""Safetensors: read as the library reads it, and written as the library writes it."""

import json
import shutil
import struct
import tracemalloc
import weakref
from pathlib import Path

import pytest
import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from hf_bert_impl.conversion.errors import ConversionError
from hf_bert_impl.conversion.readers.safetensors import SafetensorsReader, is_safetensors
from hf_bert_impl.conversion.tensors import DTYPES, TensorInfo
from hf_bert_impl.conversion.writers.safetensors import write_safetensors

FIXTURES = Path(__file__).parents[1] / "fixtures"
FILES = sorted(path.relative_to(FIXTURES) for path in FIXTURES.rglob("*.safetensors"))
SHARDED = FIXTURES / "hf_safetensors_sharded" / "model.safetensors.index.json"
#: Names whose order and whose JSON are easy to get wrong.
NAMES = ('"', "\\", "\n\t\x07\x7f", "ż", "é", "🙂", "\uffee", "B", "a", "A.b", "a.1", "a.10", "a.2")


def read_all(path):
    with SafetensorsReader(path) as reader:
        found = {name: reader.read(name).clone() for name in reader.tensors}
        for name, info in reader.tensors.items():
            assert info == TensorInfo(name, tuple(found[name].shape), str(found[name].dtype)[6:])
    return found


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


def infos(state):
    return {
        name: TensorInfo(name, tuple(tensor.shape), str(tensor.dtype)[6:])
        for name, tensor in state.items()
    }


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
        assert reader.metadata == {"format": "pt"}
        assert reader.software == "safetensors, metadata format 'pt'"


def test_bfloat16_is_not_lost():
    found = read_all(FIXTURES / "hf_bf16_classifier" / "model.safetensors")
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}


def test_sharded():
    with SafetensorsReader(SHARDED) as reader:
        names = [file.name for file in reader.files]
    assert names[0] == SHARDED.name
    assert names[1:] == [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    whole = torch.load(FIXTURES / "hf_legacy" / "pytorch_model.bin", weights_only=True)
    found = read_all(SHARDED)
    left_out = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    left_out |= {"bert.embeddings.position_ids"}
    assert_same(found, {name: whole[name] for name in whole if name not in left_out})


def test_every_dtype(tmp_path):
    state = random_state()
    save_file(state, tmp_path / "all.safetensors")
    assert_same(read_all(tmp_path / "all.safetensors"), state)
    with SafetensorsReader(tmp_path / "all.safetensors") as reader:
        assert reader.software is None


def test_dtypes_that_are_listed_and_not_read(tmp_path):
    state = {
        "eighth": torch.ones(3, 2).to(torch.float8_e4m3fn),
        "complex": torch.ones(2, dtype=torch.complex64),
        "unsigned": torch.ones(5).to(torch.uint16),
        "good": torch.ones(1),
    }
    save_file(state, tmp_path / "some.safetensors")
    with SafetensorsReader(tmp_path / "some.safetensors") as reader:
        assert {name: info.dtype for name, info in reader.tensors.items()} == {
            "eighth": "F8_E4M3",
            "complex": "C64",
            "unsigned": "U16",
            "good": "float32",
        }
        assert reader.tensors["eighth"].shape == (3, 2)
        for name in ("eighth", "complex", "unsigned"):
            with pytest.raises(ConversionError, match=f"tensor '{name}' of .* is of dtype"):
                reader.read(name)
        assert torch.equal(reader.read("good"), torch.ones(1))


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


def test_tensors_outlive_the_reader():
    with SafetensorsReader(FIXTURES / FILES[0]) as reader:
        name = next(iter(reader.tensors))
        tensor = reader.read(name)
    assert torch.equal(tensor, load_file(FIXTURES / FILES[0])[name])


def test_shards_that_do_not_fit_their_index(tmp_path):
    folder = tmp_path / "sharded"
    shutil.copytree(SHARDED.parent, folder)
    index = folder / SHARDED.name
    first, second = (folder / f"model-0000{n}-of-00003.safetensors" for n in (1, 2))
    state = load_file(first)
    name = "bert.embeddings.word_embeddings.weight"
    save_file({key: value for key, value in state.items() if key != name}, first)
    with pytest.raises(ConversionError, match=f"places '{name}' in files that do not have"):
        SafetensorsReader(index)
    save_file(state | {"more": torch.ones(1)}, first)
    with pytest.raises(ConversionError, match="hold 'more', which it does not list"):
        SafetensorsReader(index)
    save_file(state | load_file(second), first)
    with pytest.raises(ConversionError, match=f"lies in both {first.name} and {second.name}"):
        SafetensorsReader(index)
    first.unlink()
    with pytest.raises(ConversionError, match=first.name):
        SafetensorsReader(index)


def test_many_missing_tensors_are_one_short_line(tmp_path):
    shutil.copy(SHARDED, tmp_path)
    for file in SHARDED.parent.glob("*.safetensors"):
        save_file({}, tmp_path / file.name)
    with pytest.raises(ConversionError, match="and 41 more in files that do not have") as raised:
        SafetensorsReader(tmp_path / SHARDED.name)
    assert len(str(raised.value)) < 700


# --- writing ---------------------------------------------------------------------------------


def write(folder, state, **options):
    return write_safetensors(folder, infos(state), state.__getitem__, **options)


@pytest.mark.parametrize("file", [file for file in FILES if "-of-" not in file.name], ids=str)
def test_copies_are_identical(file, tmp_path):
    with SafetensorsReader(FIXTURES / file) as reader:
        paths = write_safetensors(tmp_path, reader.tensors, reader.read)
    assert paths == (tmp_path / "model.safetensors",)
    assert paths[0].read_bytes() == (FIXTURES / file).read_bytes()


def test_writes_what_the_library_writes(tmp_path):
    state = random_state()
    save_file(state, tmp_path / "library.safetensors", metadata={"format": "pt"})
    written = [tmp_path / "model.safetensors"]
    for order in (state, dict(reversed(state.items())), dict(sorted(state.items()))):
        assert list(write(tmp_path, order)) == written
        assert written[0].read_bytes() == (tmp_path / "library.safetensors").read_bytes()


@pytest.mark.parametrize("state", [{}, {"a": torch.zeros(0)}, {"a": torch.tensor(1)}], ids=str)
def test_small_files(state, tmp_path):
    save_file(state, tmp_path / "library.safetensors", metadata={"format": "tf"})
    (path,) = write(tmp_path, state, metadata={"format": "tf"})
    assert path.read_bytes() == (tmp_path / "library.safetensors").read_bytes()
    assert_same(read_all(path), state)


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


def test_views_are_written_as_they_look(tmp_path):
    whole = torch.randn(7, 5)
    state = {
        "t": whole.T,
        "column": whole[:, 2],
        "steps": whole[::2],
        "same": whole[:1].expand(3, 5),
    }
    (path,) = write(tmp_path, state)
    assert_same(load_file(path), state)


def test_one_tensor_in_memory_at_a_time(tmp_path):
    tensors = {f"{n}": TensorInfo(f"{n}", (1 << 18,), "float32") for n in range(20)}
    alive = []

    def read(name):
        tensor = torch.full((1 << 18,), float(name))
        assert sum(reference() is not None for reference in alive) <= 1
        alive.append(weakref.ref(tensor.untyped_storage()))
        return tensor

    tracemalloc.start()
    (path,) = write_safetensors(tmp_path, tensors, read)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    assert len(alive) == 20
    assert {name: float(tensor[5]) for name, tensor in load_file(path).items()} == {
        name: float(name) for name in tensors
    }


@pytest.mark.parametrize("tensor", [torch.zeros(2), torch.zeros(3, 1), torch.zeros(3).double()])
def test_tensor_that_is_not_as_announced(tensor, tmp_path):
    with pytest.raises(ConversionError, match=r"tensor 'a' came as .*; expected float32 \[3\]"):
        write_safetensors(tmp_path, infos({"a": torch.zeros(3)}), lambda name: tensor)


def test_what_cannot_be_written(tmp_path):
    for info in (TensorInfo("a", (3,), "string"), TensorInfo("__metadata__", (3,), "float32")):
        for size in (None, 5):
            with pytest.raises(ConversionError, match=f"tensor '{info.name}' is of dtype"):
                write_safetensors(tmp_path, {info.name: info}, torch.zeros, size)
    with pytest.raises(ConversionError, match="stands in a name"):
        write(tmp_path, {"\ud800": torch.zeros(3)})
    with pytest.raises(ConversionError, match=r"nowhere.* cannot be written"):
        write(tmp_path / "nowhere", {"a": torch.zeros(3)})
