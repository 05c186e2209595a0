"""The scripts of `benchmarks/` fit the package."""

import importlib
import math

import pytest
from typer.testing import CliRunner

from tests.test_structure import ROOT

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py")))
def test_scripts_import(name):
    importlib.import_module(f"benchmarks.{name}")


@pytest.mark.slow
def test_models_of_sentence_transformers_are_recorded(minilm_path, tmp_path):
    """With the same vectors from both, for the two sentences of README too."""
    from benchmarks.text_models import app
    from hf_bert_impl.files.json_files import read_json

    file = tmp_path / "texts.json"
    given = [str(minilm_path), "--cases", "pair,dense", "--peers", "sentence-transformers"]
    small = ["--sentences", "7", "--threads", "1", "--output", str(file)]
    result = CliRunner().invoke(app, given + small, catch_exceptions=False)
    assert result.exit_code == 0
    rows = read_json(file)["rows"]
    assert [(row["case"], row["rows"]) for row in rows] == [("pair", 7), ("dense", 7)]
    assert all(row["ours_error"] < 1e-5 and math.isfinite(row["ratio"]) for row in rows)
