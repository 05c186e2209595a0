"""Texts for the tests of sentence vectors, and how vectors are compared."""

import numpy as np

TOLERANCE = 1e-5
POSITIONS = 31
SHORT = ["nice to meet you", "", "the river rose over night, and you.", "a"]
LONG = " ".join(["the river rose and"] * 12)  # more than the model has positions for
TEXTS = [*SHORT, LONG]


def assert_near(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() < TOLERANCE
