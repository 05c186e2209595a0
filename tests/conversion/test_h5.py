"""Keras weights: what Keras wrote is read bit by bit, and what is written reads in h5py."""

import gc
import shutil
import weakref
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_bert_impl.conversion.errors import ConversionError
from hf_bert_impl.conversion.readers.h5 import H5Reader, is_h5
from hf_bert_impl.conversion.tensors import DTYPES, TensorInfo
from hf_bert_impl.conversion.writers.h5 import write_h5

FIXTURES = Path(__file__).parents[1] / "fixtures"
WHOLE = ("tf2_h5", "tf2_h5_classifier", "tf2_h5_qa")


def datasets(path):
    """Every dataset by h5py, in its order."""
    found = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: found.update(
                {name: item[()]} if isinstance(item, h5py.Dataset) else {}
            )
        )
    return found


def assert_reads_as_h5py(path):
    expected = datasets(path)
    with H5Reader(path) as reader:
        assert list(reader.tensors) == list(expected)
        for name, array in expected.items():
            tensor, info = reader.read(name), reader.tensors[name]
            plain = np.asarray(array)
            assert info == TensorInfo(name, plain.shape, plain.dtype.name)
            assert tensor.dtype == DTYPES[info.dtype]
            native = plain.astype(plain.dtype.newbyteorder("="))
            assert tuple(tensor.shape) == plain.shape
            assert tensor.numpy().tobytes() == native.tobytes()


def listed(tensors):
    return {
        name: TensorInfo(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in tensors.items()
    }


@pytest.mark.parametrize(
    "path",
    sorted(FIXTURES.glob("tf2_h5*/*.h5")),
    ids=lambda path: f"{path.parent.name}-{path.name}",
)
def test_reads_what_keras_wrote(path):
    assert_reads_as_h5py(path)


@pytest.mark.parametrize("name", WHOLE)
def test_software(name):
    path = FIXTURES / name / "tf_model.h5"
    with H5Reader(path) as reader:
        assert reader.software == "Keras 2.18.0 (tensorflow)"
        assert reader.files == (path,)
        assert reader.format == "h5"


def test_shards_are_the_whole():
    whole = H5Reader(FIXTURES / "tf2_h5_classifier" / "tf_model.h5")
    folder = FIXTURES / "tf2_h5_sharded"
    with H5Reader(folder / "tf_model.h5.index.json") as shards:
        names = {name.split("/", 2)[2]: name for name in whole.tensors}
        assert len(names) == len(whole.tensors) == 41
        assert set(shards.tensors) == set(names)
        for short, long in names.items():
            assert shards.tensors[short].shape == whole.tensors[long].shape
            assert torch.equal(shards.read(short), whole.read(long))
        assert [file.name for file in shards.files] == [
            "tf_model.h5.index.json",
            *(f"tf_model-0000{number}-of-00007.h5" for number in range(2, 8)),
        ]


@pytest.mark.parametrize("prefix", ["model/", ""])
def test_shards_with_and_without_a_prefix(prefix, tmp_path):
    (tmp_path / "m.h5.index.json").write_text(
        f'{{"weight_map": {{"{prefix}bert/a:0": "1.h5", "{prefix}head/b:0": "2.h5"}}}}'
    )
    for name, key in (("1.h5", "bert/a:0"), ("2.h5", "head/b:0")):
        with h5py.File(tmp_path / name, "w") as file:
            file[key] = np.arange(3)
    with H5Reader(tmp_path / "m.h5.index.json") as reader:
        assert list(reader.tensors) == ["bert/a:0", "head/b:0"]


def test_signature(tmp_path):
    for place in (0, 512, 1024, 2048, 4096):
        path = tmp_path / f"{place}.h5"
        with h5py.File(path, "w", userblock_size=place) as file:
            file["layer/a"] = np.arange(5.0)
            file["layer/b"] = np.float32(2)
        assert is_h5(path)
        assert_reads_as_h5py(path)
    found = {path for path in FIXTURES.rglob("*") if is_h5(path)}
    assert found == set(FIXTURES.glob("tf2_h5*/*.h5"))
    assert not is_h5(tmp_path)
    assert not is_h5(tmp_path / "nothing")


def test_every_kind_of_number(tmp_path):
    path = tmp_path / "kinds.h5"
    values = np.arange(15).reshape(3, 5) - 7
    with h5py.File(path, "w") as file:
        for kind in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", ">f2", ">f4", ">f8", ">i2", ">i8"):
            file[f"kinds/{kind}"] = values.astype(kind)
        file["kinds/u1"] = values.astype("u1")
        file["kinds/bool"] = values > 0
        file["kinds/none"] = np.zeros((0, 7), "f4")
        file["kinds/scalar"] = np.float32(-0.0)
        file["kinds/nan"] = np.array([np.nan, np.inf, -0.0], "f4")
    assert_reads_as_h5py(path)


def test_other_kinds_are_listed_and_not_read(tmp_path):
    path = tmp_path / "kinds.h5"
    kinds = {
        "uint16": np.arange(3, dtype="u2"),
        "string": "a word",
        "compound": np.zeros(2, [("a", "f4"), ("b", "i4")]),
        "enum": None,
        "opaque": np.void(b"abc"),
    }
    with h5py.File(path, "w") as file:
        for kind, value in kinds.items():
            if kind == "enum":
                file.create_dataset(kind, (3,), h5py.enum_dtype({"x": 0, "y": 4}, "i1"))[:] = 4
            else:
                file[kind] = value
    with H5Reader(path) as reader:
        assert {info.dtype for info in reader.tensors.values()} == set(kinds)
        for name in kinds:
            with pytest.raises(ConversionError, match=f"'{name}' of .* is {name}"):
                reader.read(name)


def test_many_groups_and_datasets(tmp_path):
    """Trees of more than one level, heaps that grew, and headers in several blocks."""
    path = tmp_path / "many.h5"
    with h5py.File(path, "w") as file:
        for number in range(700):
            file[f"group/{number % 7}/weight_{number}:0"] = np.arange(number % 5)
        for number in range(40):
            file.attrs[f"note {number}"] = "x" * number
        file.attrs["keras_version"] = np.bytes_(b"2.1.6")
        file.attrs["backend"] = b"theano"
        file["/".join(["deep"] * 60)] = np.arange(3)
    assert_reads_as_h5py(path)
    with H5Reader(path) as reader:
        assert reader.software == "Keras 2.1.6 (theano)"


def test_mapped_tensors_outlive_the_reader():
    with H5Reader(FIXTURES / "tf2_h5_qa" / "tf_model.h5") as reader:
        name = next(iter(reader.tensors))
        tensor = reader.read(name)
        expected = tensor.clone()
        watch = weakref.ref(next(iter(reader._homes.values())))
    gc.collect()
    assert watch() is None
    assert torch.equal(tensor, expected)


def test_files_are_not_changed(tmp_path):
    path = tmp_path / "tf_model.h5"
    shutil.copy(FIXTURES / "tf2_h5_qa" / "tf_model.h5", path)
    before = path.read_bytes()
    with H5Reader(path) as reader:
        for name in reader.tensors:
            reader.read(name).zero_()
    assert path.read_bytes() == before


# Writing


@pytest.mark.parametrize("name", WHOLE)
def test_written_as_keras_does(name, tmp_path):
    source, path = FIXTURES / name / "tf_model.h5", tmp_path / "tf_model.h5"
    with h5py.File(source) as file:  # Keras takes the weights of a layer by their order
        order = [
            f"{layer}/{weight}"
            for layer in file.attrs["layer_names"]
            for weight in file[layer].attrs["weight_names"]
        ]
    with H5Reader(source) as reader:
        assert sorted(order) == sorted(reader.tensors)
        tensors = {name: reader.tensors[name] for name in order}
        assert write_h5(path, tensors, reader.read) == (path,)
    expected, found = datasets(source), datasets(path)
    assert list(found) == list(expected)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    with h5py.File(source) as old, h5py.File(path) as new:
        for attribute in ("backend", "keras_version"):
            assert new.attrs[attribute] == old.attrs[attribute]
        layers = list(new.attrs["layer_names"])
        assert layers == [layer for layer in old.attrs["layer_names"] if len(old[layer])]
        for layer in layers:
            names = list(new[layer].attrs["weight_names"])
            assert names == list(old[layer].attrs["weight_names"])
            assert all(isinstance(new[layer][name], h5py.Dataset) for name in names)
    assert_reads_as_h5py(path)


DTYPE_NAMES = st.sampled_from(sorted(DTYPES))
SHAPES = st.lists(st.integers(0, 4), max_size=4)


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@settings(deadline=None, max_examples=60)
@given(
    kinds=st.lists(st.tuples(DTYPE_NAMES, SHAPES), min_size=1, max_size=4), seed=st.integers(0, 9)
)
def test_round_trip(kinds, seed, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "round_trip.h5"
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for number, (dtype, shape) in enumerate(kinds):
        values = torch.randn(shape, generator=generator) * 9
        tensors[f"layer_{number % 2}/inner/{number}:0"] = values.to(DTYPES[dtype])
    infos = listed(tensors)
    write_h5(path, infos, tensors.__getitem__)
    with H5Reader(path) as reader:
        assert reader.tensors == infos
        for name, tensor in tensors.items():
            assert bits(reader.read(name)) == bits(tensor)


def test_bfloat16_is_a_number_to_others(tmp_path):
    path = tmp_path / "model.h5"
    values = torch.tensor([[1.0, -2.5, 3.140625], [float("inf"), -0.0, 1e-30]]).bfloat16()
    tensors = {"layer/kernel:0": values, "layer/scalar:0": values[0, 2], "layer/none:0": values[:0]}
    write_h5(path, listed(tensors), tensors.__getitem__)
    for name, array in datasets(path).items():
        assert np.array_equal(array.astype("f4"), tensors[name].float().numpy())


def test_views_are_written_as_they_look(tmp_path):
    path = tmp_path / "model.h5"
    tensors = {"layer/kernel:0": torch.arange(35.0).reshape(5, 7)[1:, ::2].T}
    tensors["layer/half:0"] = tensors["layer/kernel:0"].bfloat16()
    write_h5(path, listed(tensors), tensors.__getitem__)
    for name, array in datasets(path).items():
        assert np.array_equal(array, tensors[name].float().numpy())


def test_one_tensor_at_a_time(tmp_path):
    alive = []

    def read(name):
        gc.collect()
        assert all(watch() is None for watch in alive)
        tensor = torch.full((300, 7), float(len(alive)))
        alive.append(weakref.ref(tensor))
        return tensor

    names = [f"layer/weight_{number}:0" for number in range(5)]
    write_h5(tmp_path / "m.h5", {n: TensorInfo(n, (300, 7), "float32") for n in names}, read)
    assert len(alive) == 5


@pytest.mark.parametrize(
    "names",
    [
        *(
            ["kernel:0"],
            ["/layer/kernel:0"],
            ["layer/"],
            ["layer//kernel:0"],
            ["a/./b"],
            ["a/b\0c"],
        ),
        *(["layer/a", "layer/a/b"], ["layer/a/b", "layer/a"], ["layer/\udc80"], [""]),
    ],
)
def test_names_that_cannot_be_written(names, tmp_path):
    tensors = dict.fromkeys(names, torch.ones(3))
    with pytest.raises(ConversionError):
        write_h5(tmp_path / "model.h5", listed(tensors), tensors.__getitem__)


def test_what_cannot_be_written(tmp_path):
    info = {"a/b": TensorInfo("a/b", (3,), "float32")}
    for tensor in (torch.ones(4), torch.ones(3).half(), torch.ones(3, 1)):
        with pytest.raises(ConversionError, match="'a/b' came as"):
            write_h5(tmp_path / "model.h5", info, {"a/b": tensor}.__getitem__)
    with pytest.raises(ConversionError, match="cannot be written"):
        write_h5(tmp_path / "no folder" / "model.h5", info, {"a/b": torch.ones(3)}.__getitem__)
    many = {f"a/{number}:0": torch.ones(1) for number in range(5000)}
    with pytest.raises(ConversionError, match="cannot be written"):
        write_h5(tmp_path / "model.h5", listed(many), many.__getitem__)


def test_h5py_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(ConversionError, match=r"pip install 'hf_bert_impl\[convert\]'"):
        write_h5(tmp_path / "model.h5", {}, {}.__getitem__)
