"""The benchmark of models of other families."""

import importlib.util
import json

import pytest

from benchmarks.families import CASES, FAMILIES, main
from hf_bert_impl.benchmark.contestants import States
from hf_bert_impl.benchmark.peers import Settings, Source
from tests.encoders.cases import random_stock


def test_every_family_is_raced(capsys, tmp_path):
    main(layers=1, rounds=1, output=tmp_path / "run.json")
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "%" in line]
    assert [row[0] for row in rows] == [name for name in FAMILIES for _ in CASES]
    assert all(float(row[-1]) < 2e-5 for row in rows)
    recorded = json.loads((tmp_path / "run.json").read_text())["rows"]
    assert [f"{row['error']:.0e}" for row in recorded] == [row[-1] for row in rows]


@pytest.mark.parametrize("name", ["RobertaModel", "DistilBertModel", "MPNetModel"])
def test_contestants_take_a_family_checkpoint(name, tmp_path):
    random_stock(name, seed=1, max_position_embeddings=140).save_pretrained(tmp_path)
    source, settings = Source(str(tmp_path)), Settings(threads=1, quick=True)
    names = ["upstream-eager", "unchanged", "prepared"]
    if importlib.util.find_spec("onnxruntime") and name != "DistilBertModel":
        names.append("onnxruntime")
    sides = [States(side, "float32", source, settings) for side in names]
    assert sides[0].model.config._attn_implementation == "eager"
    case = sides[0].case("short")
    expected, *ours = (side.result(case) for side in sides)
    assert all((states - expected).abs().max() < 2e-5 for states in ours)
    assert sides[0].kernels() is None and sides[2].kernels() is not None
