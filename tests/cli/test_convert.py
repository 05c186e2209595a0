"""`hf-bert convert` and `hf-bert inspect`."""

import json

import torch
from safetensors.torch import save_file

from hf_bert_impl.conversion.tensors import dtype_name
from tests.conversion.cases import FIXTURES, tensors_of


def test_table_says_what_was_done(hf_bert, tmp_path):
    words = hf_bert("convert", FIXTURES / "tf1", "-o", tmp_path / "out").words
    assert "google-research/bert (TensorFlow 1)" in words
    assert "46 adam_m, state of the optimizer" in words
    assert "152,934 in 46 tensors" in words
    assert "hidden_act='gelu_new'" in words
    assert "lower-cased" in words
    assert "✓ outputs compared with transformers" in words
    assert "model.safetensors" in words
    assert (tmp_path / "out/model.safetensors").is_file()


def test_options_reach_the_conversion(hf_bert, tmp_path):
    options = "--head base --dtype float16 --no-check --hidden-act gelu_new --no-do-lower-case"
    command = ("convert", FIXTURES / "tf1", "-o", tmp_path / "out", *options.split(), "--json")
    report = hf_bert(*command).report
    saved = json.loads((tmp_path / "out/conversion_report.json").read_text())
    assert report | {"notes": 0} == saved | {"notes": 0}  # which name options, not arguments
    result = report["result"]
    assert (result["class"], result["hidden_act"]) == ("BertModel", "gelu_new")
    assert {row["dtype"] for row in report["mapped"]} == {"float16"}
    assert report["checks"] == []
    assert "cased (as requested)" in result["tokenizer"] and "lower" not in result["tokenizer"]


def test_inspect_lists_every_tensor_and_what_it_becomes(hf_bert):
    found, tensors = hf_bert("inspect", FIXTURES / "tf1", "--json").report, tensors_of("tf1")
    facts = {"path": str(FIXTURES / "tf1"), "format": "tf1", "class": "BertForPreTraining"}
    facts |= {"container": "TensorFlow (tensor bundle, version 1)", "problem": None}
    facts |= {"numbers": sum(tensor.numel() for tensor in tensors.values())}
    assert found.items() >= facts.items() and "google-research" in found["software"]
    listed = {row["name"]: (tuple(row["shape"]), row["dtype"]) for row in found["tensors"]}
    assert listed == {name: (tuple(t.shape), dtype_name(t)) for name, t in tensors.items()}
    becomes = {row["name"]: row["becomes"] for row in found["tensors"]}
    assert becomes["global_step"].startswith("(") and "step" in becomes["global_step"]
    assert becomes["bert/embeddings/word_embeddings"] == "bert.embeddings.word_embeddings.weight"
    table = "".join(hf_bert("inspect", FIXTURES / "tf1").out.split())
    assert all(name in table for name in listed)


def test_inspect_shows_what_cannot_be_converted(hf_bert, tmp_path):
    save_file({"roberta.x.weight": torch.ones(3, 5)}, tmp_path / "model.safetensors")
    printed = hf_bert("inspect", tmp_path / "model.safetensors").printed
    assert all(it in printed for it in ("roberta.x.weight", "3 × 5", "cannot be converted"))
