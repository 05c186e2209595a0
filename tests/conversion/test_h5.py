"""Keras weights: HDF5 as any option of h5py writes it; lies and crashes are one clear error."""

import struct

import h5py
import numpy as np
import pytest

from hf_bert_impl.conversion.readers.h5 import is_h5, read_h5
from tests.conversion.cases import FORMATS, assert_same, by_h5py

read_all, refuse = FORMATS["h5"].read_all, FORMATS["h5"].refuse
ROWS = np.arange(600, dtype="f4").reshape(30, 20)


def assert_reads_as_h5py(path):
    assert is_h5(path)
    found, expected = read_all(path), by_h5py(path)
    assert found.keys() == expected.keys()
    assert_same(found, expected)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"libver": "latest"},
        {"libver": "earliest", "userblock_size": 512},
        {"track_order": True},
        {"fs_strategy": "page", "fs_persist": True},
    ],
    ids=str,
)
def test_every_option_of_h5py(options, tmp_path):
    path = tmp_path / "some.h5"
    datasets = {
        "plain": {},
        "gzip": {"compression": "gzip", "compression_opts": 9, "shuffle": True},
        "lzf": {"compression": "lzf"},
        "sums": {"fletcher32": True},
        "chunks": {"chunks": (7, 3)},
        "growing": {"chunks": True, "maxshape": (None, 20)},
        "scaled": {"scaleoffset": 3},
    }
    with h5py.File(path, "w", **options) as file:
        for name, given in datasets.items():
            file.create_dataset(f"layer/{name}:0", data=ROWS, **given)
        for kind in ("f2", "f4", "f8", "i1", "i4", "i8", "u1", "?", ">f4", ">f8", ">i2"):
            file[f"kinds/{kind}"] = (ROWS[:3] % 9).astype(kind)
        file["kinds/none"] = np.zeros((0, 7), "f4")
        file["kinds/scalar"] = np.float32(-0.0)
        file["kinds/nan"] = np.array([np.nan, np.inf, -0.0], "f4")
        file["naïve"] = [1.0]
        file.attrs["keras_version"] = np.bytes_(b"2.1.6")
        file.attrs["backend"] = b"theano"
    assert_reads_as_h5py(path)
    assert read_h5(path).software == "Keras 2.1.6 (theano)"


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


CHUNKS = {"chunks": (1 << 20,), "compression": "gzip"}
ELSEWHERE = h5py.ExternalLink("secret.h5", "/weights")


def virtual(file):
    layout = h5py.VirtualLayout((6,), "f8")
    layout[:] = h5py.VirtualSource("/nowhere/other.h5", "x", (6,))
    file.create_virtual_dataset("virtual", layout)


#: The error, and a function that spoils a file.
REFUSED = {
    "'soft' is a link": lambda f: f.update(soft=h5py.SoftLink("/layer/good:0")),
    "'layer/out' is a link": lambda f: f["layer"].update({"out": ELSEWHERE}),
    "second name for one": lambda f: f.update({"layer/circle": f["/"]}),
    "'out' keeps its numbers in another file": lambda f: f.create_dataset(
        "out", (3,), "f8", external=[("/nowhere/raw", 0, 24)]
    ),
    "'virtual' keeps its numbers in another file": virtual,
    "more bytes than the file can hold": lambda f: f.create_dataset("hole", (1 << 50, 5), "f4"),
    # A petabyte in chunks, none of which is there.
    "'bomb' takes more bytes": lambda f: f.create_dataset("bomb", (1 << 48,), "f4", **CHUNKS),
    "'bomb' were never written": lambda f: f.create_dataset("bomb", (1 << 20,), "f4", **CHUNKS),
    "too deep": lambda f: f.create_group("/".join("g" * 70)),
}


@pytest.mark.parametrize(("match", "fill"), REFUSED.items())
def test_what_keras_does_not_write(match, fill, make):
    refuse(make(fill), match)


def patched(path, old, new):
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    return path


@pytest.mark.parametrize("sizes", [(3, 3), (2, 1 << 40), (1 << 63, 2)])
def test_a_shape_that_lies(sizes, make):
    shape = struct.pack("<2Q", 2, 3)
    refuse(patched(make(lambda f: None), shape, struct.pack("<2Q", *sizes)))


def test_tensors_that_share_bytes(make):
    path = make(lambda f: f.update({"layer/other:0": np.arange(6.0).reshape(2, 3) + 7}))
    with h5py.File(path) as file:
        good, other = (item.id.get_offset() for item in file["layer"].values())
    patched(path, struct.pack("<2Q", other, 48), struct.pack("<2Q", good, 48))
    refuse(path, "share bytes")


@pytest.mark.parametrize(
    ("version", "software"), [("2\n1", None), ("2" * 900, "Keras " + "2" * 40), (1.5, None)]
)
def test_attributes_that_lie(version, software, make):
    """The writer that a file names is shown on one line, or not."""
    path = make(lambda f: f.attrs.update(keras_version=version, backend="\x1b[2J"))
    assert read_h5(path).software == software
