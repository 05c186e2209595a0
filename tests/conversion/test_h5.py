"""Keras weights: what Keras wrote is read bit by bit, lies are refused, h5py reads what is written.

Whatever HDF5's own library would do with a damaged file, here it is one clear error, at once.
"""

import struct

import h5py
import numpy as np
import pytest

from hf_bert_impl.conversion.readers.h5 import H5Reader, is_h5
from hf_bert_impl.conversion.writers.h5 import write_h5
from tests.conversion.cases import FIXTURES, FORMATS, assert_same, by_h5py

read_all, refuse = FORMATS["h5"].read_all, FORMATS["h5"].refuse


def assert_reads_as_h5py(path):
    found, expected = read_all(path), by_h5py(path)
    assert list(found) == list(expected)
    assert_same(found, expected)


@pytest.mark.parametrize("place", [0, 512, 4096])
def test_a_block_of_the_user_before_it(place, tmp_path):
    path = tmp_path / "some.h5"
    with h5py.File(path, "w", userblock_size=place) as file:
        file["layer/a"] = np.arange(400.0)
        file["layer/b"] = np.float32(2)
    assert is_h5(path)
    assert_reads_as_h5py(path)
    content = path.read_bytes()
    for cut in range(place, len(content), 97):
        path.write_bytes(content[:cut])
        refuse(path)


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


ROWS = np.arange(600.0).reshape(30, 20)
HEADERS = "HDF5 1.8 or later|groups of HDF5 1.8|headers of HDF5 1.8"
CHUNKS = {"chunks": (1 << 20,), "compression": "gzip"}
ELSEWHERE = h5py.ExternalLink("secret.h5", "/weights")


def virtual(file):
    layout = h5py.VirtualLayout((6,), "f8")
    layout[:] = h5py.VirtualSource("/nowhere/other.h5", "x", (6,))
    file.create_virtual_dataset("virtual", layout)


def shared_type(file):
    file.update(type=np.dtype("f4"))
    file.create_dataset("shared", (3,), file["type"])


#: What is refused, what is put into a file, and how the file is opened.
REFUSED = {
    "soft link": (lambda f: f.update(soft=h5py.SoftLink("/layer/good:0")), {}),
    "links to other files": (lambda f: f["layer"].update({"out": ELSEWHERE}), {}),
    "second name for one|circle": (lambda f: f.update({"layer/circle": f["/"]}), {}),
    "in another file": (
        lambda f: f.create_dataset("out", (3,), "f8", external=[("/nowhere/raw", 0, 24)]),
        {},
    ),
    "compressed": (lambda f: f.create_dataset("zip", data=ROWS, compression="gzip"), {}),
    "more than any file holds": (lambda f: f.create_dataset("hole", (1 << 50, 5), "f4"), {}),
    "in chunks or elsewhere": (virtual, {}),
    "share a type": (shared_type, {}),
    # A petabyte in chunks, none of which is there, and zeros in a few kilobytes.
    "compressed|bomb": (lambda f: f.create_dataset("bomb", (1 << 48,), "f4", **CHUNKS), {}),
    "compressed|zeros": (
        lambda f: f.create_dataset("bomb", data=np.zeros(1 << 22, "i1"), **CHUNKS),
        {},
    ),
    "groups in one another": (lambda f: f.create_group("/".join("g" * 70)), {}),
    HEADERS: (lambda f: None, {"libver": "latest"}),
    f"{HEADERS}|order": (lambda f: f.create_group("g", track_order=True), {}),
    f"{HEADERS}|name": (lambda f: f.update({"naïve": [1.0]}), {}),
}


@pytest.mark.parametrize(("match", "fill", "options"), [(k, *v) for k, v in REFUSED.items()])
def test_what_keras_does_not_write(match, fill, options, make):
    refuse(make(fill, **options), match)


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


def test_headers_that_go_on_in_themselves(make):
    path = make(lambda f: [f.attrs.update({f"a{n}": n}) for n in range(30)])
    content = path.read_bytes()
    places = [at for at in range(0, len(content), 8) if content[at : at + 4] == b"\x10\0\x10\0"]
    assert places
    for at in places:
        for there in ((at, 24), (at, 1 << 40)):
            path.write_bytes(content[: at + 8] + struct.pack("<2Q", *there) + content[at + 24 :])
            refuse(path)


@pytest.mark.parametrize("name", [b"", b".", b"a/b:0", b"good:0", b"\xff\xfe:0"])
def test_names_that_lie(name, make):
    path = make(lambda f: f.update({"layer/twin_x:0": [1.0]}))
    refuse(patched(path, b"twin_x:0", name.ljust(8, b"\0")), "has the name|no UTF-8")


@pytest.mark.parametrize(
    ("version", "software"), [("2\n1", None), ("2" * 900, "Keras " + "2" * 40), (1.5, None)]
)
def test_attributes_that_lie(version, software, make):
    """What a file says of its writer is shown in one line, or not at all."""
    path = make(lambda f: f.attrs.update(keras_version=version, backend="\x1b[2J"))
    with H5Reader(path) as reader:
        assert reader.software == software


# --- writing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tf2_h5", "tf2_h5_classifier", "tf2_h5_qa"])
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
    assert_same(by_h5py(path), by_h5py(source))
    with h5py.File(source) as old, h5py.File(path) as new:
        for attribute in ("backend", "keras_version"):
            assert new.attrs[attribute] == old.attrs[attribute]
        layers = list(new.attrs["layer_names"])
        assert layers == [layer for layer in old.attrs["layer_names"] if len(old[layer])]
        for layer in layers:
            names = list(new[layer].attrs["weight_names"])
            assert names == list(old[layer].attrs["weight_names"])
            assert all(isinstance(new[layer][name], h5py.Dataset) for name in names)
