"""The scripts of `benchmarks/` fit the package."""

import importlib

import pytest

from tests.test_structure import ROOT


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py")))
@pytest.mark.filterwarnings("ignore")
def test_scripts_import(name):
    importlib.import_module(f"benchmarks.{name}")
