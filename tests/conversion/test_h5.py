"""Keras weights: HDF5 as any option of h5py writes it; test_damages has what it refuses."""

import h5py
import numpy as np
import pytest

from hf_bert_impl.conversion.readers.h5 import is_h5, read_h5
from tests.conversion.cases import FORMATS, assert_same, by_h5py

read_all = FORMATS["h5"].read_all
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


@pytest.mark.parametrize(
    ("version", "software"), [("2\n1", None), ("2" * 900, "Keras " + "2" * 40), (1.5, None)]
)
def test_attributes_that_lie(version, software, tmp_path):
    """The writer that a file names is shown on one line, or not."""
    with h5py.File(tmp_path / "some.h5", "w") as file:
        file.attrs.update(keras_version=version, backend="\x1b[2J")
    assert read_h5(tmp_path / "some.h5").software == software
