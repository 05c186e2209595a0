"""Keras weights: what Keras wrote is read bit by bit, lies are refused, h5py reads what is written.

Whatever HDF5's own library would do with a damaged file, here it is one clear error, at once.
"""

import struct

import h5py
import numpy as np
import pytest
import torch

from hf_bert_impl.conversion.readers import hdf5
from hf_bert_impl.conversion.readers.h5 import H5Reader, is_h5
from hf_bert_impl.conversion.tensors import DTYPES, TensorInfo
from hf_bert_impl.conversion.writers.h5 import write_h5
from hf_bert_impl.errors import InputError
from tests.conversion.cases import FIXTURES, FORMATS, infos_of

WHOLE = ("tf2_h5", "tf2_h5_classifier", "tf2_h5_qa")
read_all, refuse = FORMATS["h5"].read_all, FORMATS["h5"].refuse


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


# --- what h5py can write and Keras does not --------------------------------------------------


@pytest.fixture
def make(tmp_path):
    """Write a file by h5py."""

    def make(fill, **options):
        path = tmp_path / "bad.h5"
        with h5py.File(path, "w", **options) as file:
            file["layer/good:0"] = np.arange(6.0).reshape(2, 3)
            fill(file)
        return path

    return make


def test_truncated_behind_a_block_of_the_user(tmp_path):
    path = tmp_path / "cut.h5"
    with h5py.File(path, "w", userblock_size=512) as file:
        file["layer/a:0"] = np.arange(400.0)
    content = path.read_bytes()
    for cut in range(512, len(content), 37):
        path.write_bytes(content[:cut])
        refuse(path)


def test_links(make, tmp_path):
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["weights"] = np.arange(3)
    refuse(make(lambda f: f.update(soft=h5py.SoftLink("/layer/good:0"))), "soft link")
    link = h5py.ExternalLink("secret.h5", "/weights")
    refuse(make(lambda f: f.update(out=link)), "links to other files")
    refuse(make(lambda f: f["layer"].update({"out": link})), "links to other files, at 'layer'")
    refuse(make(lambda f: f.update(again=f["layer/good:0"])), "second name for one object")
    refuse(make(lambda f: f.update({"layer/circle": f["layer"]})), "second name for one object")
    refuse(make(lambda f: f.update({"layer/circle": f["/"]})), "second name for one object")


def test_other_storage(make, tmp_path):
    rows = np.arange(600.0).reshape(30, 20)
    (tmp_path / "raw").write_bytes(rows.tobytes())
    outside = [(str(tmp_path / "raw"), 0, rows.nbytes)]
    virtual = h5py.VirtualLayout((6,), "f8")
    virtual[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", (6,))
    cases = {
        "in another file": lambda f: f.create_dataset("out", (30, 20), "f8", external=outside),
        "compressed": lambda f: f.create_dataset("zip", data=rows, compression="gzip"),
        "compressed|in chunks": lambda f: f.create_dataset("s", data=rows, shuffle=True),
        "in chunks": lambda f: f.create_dataset("chunks", data=rows, chunks=(7, 3)),
        "never written": lambda f: f.create_dataset("hole", (1 << 40, 5), "f4"),
        "more than any file holds": lambda f: f.create_dataset("hole", (1 << 50, 5), "f4"),
        "in chunks or elsewhere": lambda f: f.create_virtual_dataset("virtual", virtual),
        "without a shape": lambda f: f.create_dataset("null", data=h5py.Empty("f4")),
        "share a type": lambda f: (
            f.update(type=np.dtype("f4")),
            f.create_dataset("shared", (3,), f["type"]),
        ),
        "neither group nor dataset": lambda f: f.update(type=np.dtype("f4")),
    }
    for match, fill in cases.items():
        refuse(make(fill), match)


def test_a_bomb_is_not_unpacked(make):
    """A petabyte in chunks, none of which is there, and a gigabyte of zeros in a few kilobytes."""
    options = {"chunks": (1 << 20,), "compression": "gzip"}
    refuse(make(lambda f: f.create_dataset("bomb", (1 << 48,), "f4", **options)), "compressed")
    path = make(lambda f: f.create_dataset("bomb", data=np.zeros(1 << 22, "i1"), **options))
    assert path.stat().st_size < 1 << 16
    refuse(path, "compressed")


def test_newer_layouts(make):
    refuse(make(lambda f: None, libver="latest"), "HDF5 1.8 or later")
    refuse(make(lambda f: None, libver=("v108", "v108")), "HDF5 1.8 or later")
    refuse(make(lambda f: None, track_order=True), "groups of HDF5 1.8|headers of HDF5 1.8")
    refuse(make(lambda f: f.create_group("g", track_order=True)), "groups of HDF5 1.8|headers of")
    refuse(make(lambda f: f.update({"naïve": [1.0]})), "groups of HDF5 1.8")


def test_too_deep(make):
    refuse(make(lambda f: f.create_group("/".join("g" * 70))), "groups in one another")


# --- lies that h5py does not write -----------------------------------------------------------


def patched(path, old, new, count=None):
    content = path.read_bytes()
    assert count is None or content.count(old) == count
    path.write_bytes(content.replace(old, new, 1))
    return path


def test_a_shape_that_lies(make):
    shape = struct.pack("<2Q", 2, 3)
    for sizes in ((3, 3), (2, 1 << 40), (1 << 63, 2), (0, 3), (1, 3)):
        path = patched(make(lambda f: None), shape, struct.pack("<2Q", *sizes))
        if 0 in sizes:
            assert read_all(path)["layer/good:0"].shape == (0, 3)
        else:
            refuse(path, "layer/good:0")


def test_tensors_that_share_bytes(make):
    """A thousand of one megabyte in a file of one megabyte would be a gigabyte of weights."""
    path = make(lambda f: f.update({"layer/other:0": np.arange(6.0).reshape(2, 3) + 7}))
    with h5py.File(path) as file:
        good, other = (item.id.get_offset() for item in file["layer"].values())
    patched(path, struct.pack("<2Q", other, 48), struct.pack("<2Q", good, 48), 1)
    refuse(path, "'layer/good:0' and 'layer/other:0' share bytes")


def test_addresses_beyond_the_file(make):
    path = make(lambda f: None)
    with h5py.File(path) as file:
        offset = file["layer/good:0"].id.get_offset()
    content = path.read_bytes()
    for address in (len(content) - 47, len(content), 1 << 40, (1 << 64) - 49, (1 << 64) - 2):
        path.write_bytes(content)
        refuse(patched(path, struct.pack("<2Q", offset, 48), struct.pack("<2Q", address, 48), 1))


def test_circles_end(make):
    """A node that is its own child, and a header that goes on in itself."""
    path = make(lambda f: [f.create_group(f"g/{number}") for number in range(300)])
    content = path.read_bytes()
    nodes = [at for at in range(0, len(content), 8) if content[at : at + 6] == b"TREE\0\1"]
    assert nodes
    for at in nodes:
        changed = bytearray(content)
        changed[at + 32 : at + 40] = struct.pack("<Q", at)
        path.write_bytes(changed)
        refuse(path)
    path = make(lambda f: [f.attrs.update({f"a{n}": n}) for n in range(30)])
    content = path.read_bytes()
    found = 0
    for at in range(0, len(content) - 24, 8):
        if content[at : at + 4] == b"\x10\0\x10\0":
            changed = bytearray(content)
            place = struct.unpack_from("<Q", content, at + 8)[0]
            changed[at + 8 : at + 24] = struct.pack("<2Q", at, 24)
            path.write_bytes(changed)
            refuse(path)
            changed[at + 8 : at + 24] = struct.pack("<2Q", place, 1 << 40)
            path.write_bytes(changed)
            refuse(path, "bytes at")
            found += 1
    assert found


@pytest.mark.parametrize("name", [b"", b".", b"a/b:0", b"good:0", b"\xff\xfe:0"])
def test_names_that_lie(name, make):
    path = make(lambda f: f.update({"layer/twin_x:0": [1.0]}))
    refuse(patched(path, b"twin_x:0", name.ljust(8, b"\0")), "has the name|no UTF-8")


def test_few_bytes_of_headers(make, monkeypatch):
    path = make(lambda f: None)
    monkeypatch.setattr(hdf5, "_MAX_METADATA", 700)
    refuse(path, "more bytes than")


def test_attributes_that_lie(make):
    """What a file says of its writer is shown in one line, or not at all."""
    path = make(lambda f: f.attrs.update(keras_version="2\n1", backend="x"))
    with H5Reader(path) as reader:
        assert reader.software is None
    path = make(lambda f: f.attrs.update(keras_version="2" * 900, backend="\x1b[2J"))
    with H5Reader(path) as reader:
        assert reader.software == "Keras " + "2" * 40
    path = make(lambda f: f.attrs.update(keras_version=np.float32(2), backend=["a", "b"]))
    with H5Reader(path) as reader:
        assert reader.software is None
        assert torch.equal(reader.read("layer/good:0"), torch.arange(6.0).double().reshape(2, 3))
    path = make(lambda f: f.attrs.update(keras_version="2.18.0"))
    refuse(patched(path, b"GCOL", b"GCOM", 1), "no strings")


# --- writing ---------------------------------------------------------------------------------


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
    with pytest.raises(ValueError, match=r"pip install -e '\.\[convert\]'"):
        write_h5(tmp_path / "model.h5", {}, {}.__getitem__)
