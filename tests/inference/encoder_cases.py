"""Texts for the tests of sentence vectors, and how vectors and folders are compared."""

import numpy as np

TOLERANCE = 1e-5
POSITIONS = 31
SHORT = ["nice to meet you", "", "the river rose over night, and you.", "a"]
LONG = " ".join(["the river rose and"] * 12)  # more than the model has positions for


def assert_near(found, expected):
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() < TOLERANCE


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
