"""Keras weights: what Keras wrote is read bit by bit, and what is written reads in h5py."""

import h5py
import numpy as np
import pytest
import torch

from hf_bert_impl.conversion.readers.h5 import H5Reader, is_h5
from hf_bert_impl.conversion.tensors import DTYPES, TensorInfo
from hf_bert_impl.conversion.writers.h5 import write_h5
from hf_bert_impl.errors import InputError
from tests.conversion.cases import FIXTURES, infos_of

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
            with pytest.raises(InputError, match=f"'{name}' of .* is of dtype '{name}'"):
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


def test_bfloat16_is_a_number_to_others(tmp_path):
    path = tmp_path / "model.h5"
    values = torch.tensor([[1.0, -2.5, 3.140625], [float("inf"), -0.0, 1e-30]]).bfloat16()
    tensors = {"layer/kernel:0": values, "layer/scalar:0": values[0, 2], "layer/none:0": values[:0]}
    write_h5(path, infos_of(tensors), tensors.__getitem__)
    for name, array in datasets(path).items():
        assert np.array_equal(array.astype("f4"), tensors[name].float().numpy())


def test_h5py_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(ValueError, match=r"pip install 'hf_bert_impl\[convert\]'"):
        write_h5(tmp_path / "model.h5", {}, {}.__getitem__)
