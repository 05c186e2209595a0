"""Exported graphs equal the models that they were made from, on any batch size and length."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import hf_bert_impl
from hf_bert_impl import export
from hf_bert_impl.export import FILES, export_model, open_graph
from hf_bert_impl.model.configuration_bert import CODERTIMO_FIELDS
from tests.model.cases import outputs, random_config, random_model
from tests.support.damage import save_usable

pytestmark = [pytest.mark.ecosystem, pytest.mark.filterwarnings("ignore")]
SIZES = {"num_attention_heads": 3, "hidden_size": 24, "intermediate_size": 96}
#: The format, the class, and fields of the config.
RUNS: list[tuple[str, str, dict[str, Any]]] = [
    ("onnx", "BertForMultipleChoice", {}),
    ("onnx", "BertForMaskedLM", {}),
    ("onnx", "BertForTokenClassification", {"position_embedding_type": "relative_key_query"}),
    ("onnx", "BertForQuestionAnswering", SIZES | {"pruned_heads": {0: [1]}}),
    ("onnx", "BertModel", SIZES | CODERTIMO_FIELDS),
    ("openvino", "BertForMultipleChoice", {}),
    ("openvino", "BertForPreTraining", {}),
    ("openvino", "BertLMHeadModel", {}),
    ("openvino", "BertModel", {"position_embedding_type": "sinusoidal"}),
]


@pytest.fixture(autouse=True)
def _packages(library):
    for name in ("onnx", "onnxscript", "onnxruntime", "openvino"):
        library(name)


def make(name: str = "BertModel", **fields: Any) -> Any:
    """A random model in eval mode."""
    # Tracing takes as long as there are layers, and a third one is written as the second is.
    sizes = {"max_position_embeddings": 33, "num_hidden_layers": 2}
    return random_model(name, random_config(5, name, **sizes | fields), std=0.1)


def assert_equal(model: Any, file: Path, *shape: int) -> None:
    """Runs a graph on a shape that it was neither traced nor compared with."""
    ids = torch.randint(1, model.config.vocab_size, shape, generator=torch.manual_seed(1))
    batch = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
    graph, expected = open_graph(file)(batch), outputs(model, batch)
    expected = {name: expected[name] for name in graph}  # which has no cache
    torch.testing.assert_close(graph, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("format", "name", "fields"), RUNS, ids=str)
def test_every_batch_gives_what_the_model_gives(format, name, fields, tmp_path):
    model, choices = make(name, **fields), [5] * (name == "BertForMultipleChoice")
    exported = export_model(model, tmp_path / "out", format)
    assert exported.report.passed
    assert len({row.case for row in exported.report.rows}) == 6
    file = tmp_path / "out" / FILES[format]
    assert_equal(model, file, 7, *choices, 11)
    if format == "onnx":
        import onnx

        names = ["batch_size", *["num_choices"] * len(choices), "sequence_length"]
        for value in onnx.load(file).graph.input:
            assert [axis.dim_param for axis in value.type.tensor_type.shape.dim] == names


def test_opset_length_and_weights_in_a_file_of_their_own(tmp_path, monkeypatch):
    import onnx

    monkeypatch.setattr(export, "MOST_IN_ONE_FILE", 0)
    model = make()
    exported = export_model(model, tmp_path / "out", "onnx", opset=18, length=13)
    graph = onnx.load(tmp_path / "out/model.onnx")
    assert graph.opset_import[0].version == 18
    shape = graph.graph.input[0].type.tensor_type.shape
    assert [axis.dim_param or axis.dim_value for axis in shape.dim] == ["batch_size", 13]
    assert exported.files.keys() == {"config.json", "model.onnx", "model.onnx.data"}
    assert_equal(model, tmp_path / "out/model.onnx", 5, 13)
    for options, words in (
        ({"opset": 99}, "`opset`"),
        ({"length": 34}, "`length` is 34. Use 1 to 33"),
        ({"format": "openvino", "opset": 18}, "applies to onnx only"),
        ({"format": "torch-export"}, "Choose one of onnx, openvino"),
    ):
        with pytest.raises(ValueError, match=words):
            export_model(model, tmp_path / "other", **options)
    assert not (tmp_path / "other").exists()


def test_what_comes_along(tmp_path, largest_file):
    """The class and no code, a sentence model's pooling; nothing on a full disk."""
    source = save_usable(tmp_path / "source", "BertModel")
    model = make("BertForQuestionAnswering", **SIZES, pruned_heads={0: [1]})
    model.prepare_for_inference()
    model.config.architectures = ["BertForPreTraining"]
    model.config.auto_map = {"AutoModel": "modeling_bert.BertModel"}
    with largest_file(4096), pytest.raises((ValueError, OSError)):
        export_model(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    exported = export_model(model, tmp_path / "out", source=source)
    assert exported.files.keys() >= {"config.json", "model.onnx", "modules.json"}
    assert "1_Pooling/config.json" in exported.files and "vocab.txt" not in exported.files
    fields = json.loads((tmp_path / "out/config.json").read_text())
    assert fields["architectures"] == ["BertForQuestionAnswering"]
    assert fields["pruned_heads"] == {"0": [1]}
    assert "auto_map" not in fields


def test_models_that_cannot_be_exported(tmp_path):
    with pytest.raises(ValueError, match="load it with dtype"):
        export_model(make().to(torch.bfloat16), tmp_path / "out")
    config = random_config(5, "BertLMHeadModel", add_cross_attention=True)
    with pytest.raises(ValueError, match="cross-attention"):
        export_model(hf_bert_impl.BertLMHeadModel(config).eval(), tmp_path / "out")
