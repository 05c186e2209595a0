"""`hf-bert convert` and `hf-bert inspect`."""

import json

import pytest
import torch
from safetensors.torch import save_file

from tests.conversion.cases import FIXTURES


def test_table_says_what_was_done(hf_bert, tmp_path):
    result = hf_bert("convert", FIXTURES / "tf1", tmp_path / "out")
    assert result.status == 0, result.err
    words = " ".join(result.out.split())
    assert "google-research/bert (TensorFlow 1)" in words
    assert "46 first moment of the optimizer" in words
    assert "152,934 in 46 tensors" in words
    assert "--hidden-act gelu_new" in words
    assert "lower-cased" in words
    assert "✓ outputs compared with transformers" in words
    assert "model.safetensors" in words
    assert (tmp_path / "out/model.safetensors").is_file()


def test_options_reach_the_conversion(hf_bert, tmp_path):
    arguments = ("--head", "base", "--dtype", "float16", "--no-check", "--hidden-act", "gelu_new")
    result = hf_bert(
        "convert", FIXTURES / "tf1", tmp_path / "out", *arguments, "--no-do-lower-case", "--json"
    )
    report = json.loads(result.out)
    saved = json.loads((tmp_path / "out/conversion_report.json").read_text())
    assert report | {"notes": 0} == saved | {"notes": 0}  # which name options, not arguments
    assert report["result"]["class"] == "BertModel"
    assert {row["dtype"] for row in report["mapped"]} == {"float16"}
    assert report["checks"] == []
    assert report["result"]["hidden_act"] == "gelu_new"
    assert "cased (as requested)" in report["result"]["tokenizer"]
    assert "lower" not in report["result"]["tokenizer"]


@pytest.mark.parametrize("name", ["tf1", "codertimo"])
def test_inspect_lists_every_tensor(hf_bert, name):
    result = hf_bert("inspect", FIXTURES / name, "--json")
    assert result.status == 0, result.err
    found = json.loads(result.out)
    assert found["problem"] is None
    table = hf_bert("inspect", FIXTURES / name)
    assert table.status == 0
    words = "".join(table.out.split())
    for row in found["tensors"][:3]:
        assert row["name"] in words


def test_inspect_shows_what_cannot_be_converted(hf_bert, tmp_path):
    save_file({"roberta.x.weight": torch.ones(3, 5)}, tmp_path / "model.safetensors")
    result = hf_bert("inspect", tmp_path / "model.safetensors")
    assert result.status == 0
    for words in ("roberta.x.weight", "3 × 5", "cannot be converted"):
        assert words in result.out
