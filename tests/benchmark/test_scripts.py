"""The scripts of `benchmarks/` fit the package."""

import importlib
from math import inf

import pytest
from typer.testing import CliRunner

from benchmarks.families import CASES, main
from benchmarks.text_models import app
from hf_bert_impl.files.json_files import read_json
from tests.test_structure import ROOT

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py")))
def test_scripts_import(name):
    importlib.import_module(f"benchmarks.{name}")


def test_other_families_are_raced(capsys, tmp_path):
    main(only="distilbert,mpnet", layers=1, rounds=1, output=tmp_path / "run.json")
    shown = [line.split() for line in capsys.readouterr().out.splitlines() if "%" in line]
    rows = read_json(tmp_path / "run.json")["rows"]
    assert [row["family"] for row in rows] == [
        name for name in ("distilbert", "mpnet") for _ in CASES
    ]
    assert [[row[0], float(row[-1])] for row in shown] == [
        [row["family"], float(f"{row['error']:.0e}")] for row in rows
    ]
    assert all(0 < row["error"] < 2e-5 for row in rows)


@pytest.mark.slow
def test_models_of_sentence_transformers_are_recorded(minilm_path, tmp_path):
    """With the same vectors from both; llama.cpp is skipped without its library or its file."""
    scores, file = tmp_path / "sts", tmp_path / "texts.json"
    scores.mkdir()
    (scores / "one.tsv").write_text("5\ta cat\ta kitten\n1\ta cat\ta tax\n3\ta cat\ta dog\n")
    given = [str(minilm_path), "--cases", "single,mixed,dense", "--peers", "llama.cpp"]
    given += ["--dtype", "float32,int8", "--sts", str(scores), "--output", str(file)]
    small = ["--sentences", "7", "--threads", "1"]
    result = CliRunner().invoke(app, given + small, catch_exceptions=False)
    assert result.exit_code == 0 and "llama.cpp (int8): not available" in result.output
    rows = read_json(file)["rows"]
    contestants = ("sentence-transformers float32", "optimized float32", "optimized int8")
    assert [f"{row['case']} {row['contestant']} {row['dtype']}" for row in rows] == [
        f"{case} {one}" for case in ("single", "mixed", "dense") for one in contestants
    ]
    assert all(row["error"] < (1e-5 if row["dtype"] == "float32" else 0.1) for row in rows)
    assert all(row["texts"] == 7 and 0 < row["ratio"] < inf and row["ms"] > 0 for row in rows)
    assert all(row["spearman"] == pytest.approx(rows[0]["spearman"]) for row in rows)
