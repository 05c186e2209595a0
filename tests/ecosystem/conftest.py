"""Shared by the ecosystem's tests: libraries that CI requires."""

import importlib
import os

import pytest

from tests.support.lowered import WHY_NO_OPENVINO


@pytest.fixture(scope="session")
def library():
    """Imports a library. Where it is missing the test skips; in CI it fails."""

    def load(name):
        if name == "openvino" and WHY_NO_OPENVINO:
            pytest.skip(WHY_NO_OPENVINO)
        if os.environ.get("CI"):
            return importlib.import_module(name)
        return pytest.importorskip(name, reason="pip install -e '.[ecosystem]'")

    return load
