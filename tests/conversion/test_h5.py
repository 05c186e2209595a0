"""Keras weights: HDF5 as any option of h5py writes it; test_damages has what it refuses."""

import h5py
import numpy as np
import pytest
import torch

from hf_bert_impl.conversion.readers.h5 import is_h5, read_h5
from tests.conversion.cases import FORMATS, assert_same

ROWS = np.arange(600, dtype="f4").reshape(30, 20)
DATASETS = {
    "plain": {},
    "gzip": {"compression": "gzip", "compression_opts": 9, "shuffle": True},
    "lzf": {"compression": "lzf"},
    "sums": {"fletcher32": True},
    "chunks": {"chunks": (7, 3)},
    "growing": {"chunks": True, "maxshape": (None, 20)},
    "scaled": {"scaleoffset": 3},
}
KINDS = ("f2", "f4", "f8", "i1", "i4", "i8", "u1", "?", ">f4", ">f8", ">i2")
VALUES = {
    "naïve": np.array([1.0]),
    "kinds/nan": np.array([np.nan, np.inf, -0.0], "f4"),
    "kinds/none": np.zeros((0, 7), "f4"),
    "kinds/scalar": np.float32(-0.0),
    **{f"kinds/{kind}": (ROWS[:3] % 9).astype(kind) for kind in KINDS},
}


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
    with h5py.File(path, "w", **options) as file:
        for name, given in DATASETS.items():
            file.create_dataset(f"layer/{name}:0", data=ROWS, **given)
        for name, value in VALUES.items():
            file[name] = value
        file.attrs["keras_version"] = np.bytes_(b"2.1.6")
        file.attrs["backend"] = b"theano"
    expected = {f"layer/{name}:0": ROWS for name in DATASETS} | VALUES
    assert is_h5(path)
    assert_same(
        FORMATS["h5"].read_all(path),
        {
            name: torch.from_numpy(np.array(value, value.dtype.newbyteorder("=")))
            for name, value in expected.items()
        },
    )
    assert read_h5(path).software == "Keras 2.1.6 (theano)"


@pytest.mark.parametrize(
    ("version", "software"), [("2\n1", None), ("2" * 900, "Keras " + "2" * 40), (1.5, None)]
)
def test_attributes_that_lie(version, software, tmp_path):
    """The writer that a file names is shown on one line, or not."""
    with h5py.File(tmp_path / "some.h5", "w") as file:
        file.attrs.update(keras_version=version, backend="\x1b[2J")
    assert read_h5(tmp_path / "some.h5").software == software
