"""Exported graphs beside the models that they were made from; by other runtimes: ecosystem/."""

import json
import subprocess
import sys

import pytest
import torch

import hf_bert_impl
from hf_bert_impl.export.exporting import export_model
from hf_bert_impl.export.program import export_program
from tests.export.cases import CASES, assert_exports, make
from tests.model.cases import random_config

pytestmark = pytest.mark.ecosystem


@pytest.mark.parametrize("case", CASES)
def test_every_batch_gives_what_the_model_gives(case, tmp_path):
    assert_exports(make(case), tmp_path / "out", "torch-export")


def test_what_comes_along(tmp_path):
    """The class and no code, a sentence model's pooling, and weights as they were prepared."""
    source = tmp_path / "source"
    (source / "1_Pooling").mkdir(parents=True)
    (source / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    kinds = {"": "x.Transformer", "1_Pooling": "x.Pooling"}
    modules = [{"path": path, "type": kind} for path, kind in kinds.items()]
    (source / "modules.json").write_text(json.dumps(modules))
    model = make("pruned").prepare_for_inference()
    model.config.architectures = ["BertForPreTraining"]
    model.config.auto_map = {"AutoModel": "modeling_bert.BertModel"}
    exported = export_model(model, tmp_path / "out", "torch-export", source=source)
    names = {"config.json", "model.pt2", "modules.json", "1_Pooling/config.json"}
    assert set(exported.files) == names
    fields = json.loads((tmp_path / "out/config.json").read_text())
    assert fields["architectures"] == ["BertForQuestionAnswering"]
    assert fields["pruned_heads"] == {"0": [1]}
    assert "auto_map" not in fields


def test_a_torch_program_needs_torch_alone(tmp_path):
    model = make("two outputs")
    export_model(model, tmp_path / "out", "torch-export")
    ids = torch.tensor([[3, 4, 5], [6, 7, 8]])
    with torch.no_grad():
        torch.save((ids, model(ids).seq_relationship_logits), tmp_path / "expected.pt")
    code = (
        "import sys, torch\n"
        "sys.modules.update(hf_bert_impl=None, transformers=None)\n"
        "ids, expected = torch.load('expected.pt')\n"
        "module = torch.export.load('out/model.pt2').module()\n"
        "found = module(input_ids=ids, attention_mask=ids * 0 + 1, token_type_ids=ids * 0)\n"
        "assert torch.allclose(found['seq_relationship_logits'], expected, atol=1e-5)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_only_what_was_asked_for_is_replaced(tmp_path, largest_file):
    """A full disk leaves no folder."""
    folder = tmp_path / "out"
    folder.mkdir()
    for name in ("notes.txt", "openvino_model.bin", "model.onnx", "vocab.txt"):
        (folder / name).write_text("old")
    with pytest.raises(ValueError, match="`overwrite=True`"):
        export_model(make("base"), folder, "torch-export")
    full = pytest.raises(ValueError, match=r"out cannot be written .*Free some disk space")
    with largest_file(4096), full:
        export_model(make("base"), folder, "torch-export", overwrite=True)
    assert (folder / "model.onnx").read_text() == "old"
    export_model(make("base"), folder, "torch-export", overwrite=True)
    # Files of the other model are gone, and what is no model's stays.
    assert {path.name for path in folder.iterdir()} == {"notes.txt", "config.json", "model.pt2"}


def test_models_that_cannot_be_exported(tmp_path):
    with pytest.raises(ValueError, match="load it with dtype"):
        export_model(make("base").to(torch.bfloat16), tmp_path / "out", "torch-export")
    config = random_config(5, "BertLMHeadModel", add_cross_attention=True)
    with pytest.raises(ValueError, match="cross-attention"):
        export_program(hf_bert_impl.BertLMHeadModel(config))
