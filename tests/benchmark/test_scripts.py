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
    """With the same vectors from both; llama.cpp is skipped without its library or its file."""
    from benchmarks.text_models import app
    from hf_bert_impl.files.json_files import read_json

    scores, file = tmp_path / "sts", tmp_path / "texts.json"
    scores.mkdir()
    (scores / "one.tsv").write_text("5\ta cat\ta kitten\n1\ta cat\ta tax\n3\ta cat\ta dog\n")
    given = [str(minilm_path), "--cases", "single,mixed,dense", "--peers", "llama.cpp"]
    given += ["--dtype", "float32,int8", "--sts", str(scores), "--output", str(file)]
    small = ["--sentences", "7", "--threads", "1"]
    result = CliRunner().invoke(app, given + small, catch_exceptions=False)
    assert result.exit_code == 0 and "llama.cpp (int8): not available" in result.output
    rows = read_json(file)["rows"]
    contestants = ("sentence-transformers", "float32"), ("optimized", "float32")
    assert [(row["case"], row["contestant"], row["dtype"], row["texts"]) for row in rows] == [
        (case, *one, 7)
        for case in ("single", "mixed", "dense")
        for one in (*contestants, ("optimized", "int8"))
    ]
    assert all(row["error"] < (1e-5 if row["dtype"] == "float32" else 0.1) for row in rows)
    assert all(math.isfinite(row["ratio"]) and row["ms"] > 0 for row in rows)
    assert all(row["spearman"] == pytest.approx(rows[0]["spearman"]) for row in rows)
