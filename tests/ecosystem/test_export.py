"""`hf-bert export` for ONNX Runtime and OpenVINO: any batch and length, every kind of model."""

import pytest

from hf_bert_impl.export import formats
from hf_bert_impl.export.exporting import export_model
from tests.export.cases import assert_exports, make

pytestmark = pytest.mark.slow

RUNS = [
    *(("onnx", case) for case in ("base", "choices", "words", "relative", "pruned", "codertimo")),
    *(("openvino", case) for case in ("two outputs", "decoder", "answers", "sinusoidal")),
]


@pytest.mark.parametrize(("kind", "case"), RUNS)
@pytest.mark.filterwarnings("ignore")
def test_every_batch_gives_what_the_model_gives(library, kind, case, tmp_path):
    for name in formats.PACKAGES[kind]:
        library(name)
    assert_exports(make(case), tmp_path / "out", kind)


@pytest.mark.filterwarnings("ignore")
def test_onnx_of_a_certain_opset(library, tmp_path):
    for name in formats.PACKAGES["onnx"]:
        library(name)
    model = make("base")
    export_model(model, tmp_path / "out", "onnx", opset=18)
    made = library("onnx").load(tmp_path / "out/model.onnx").opset_import
    assert made[0].version == 18
    with pytest.raises(ValueError, match="`opset` is 99, in which this model cannot be written"):
        export_model(model, tmp_path / "other", "onnx", opset=99)
    assert not (tmp_path / "other").exists()


@pytest.mark.filterwarnings("ignore")
def test_large_weights_lie_in_a_file_of_their_own(library, tmp_path, monkeypatch):
    for name in formats.PACKAGES["onnx"]:
        library(name)
    monkeypatch.setattr(formats, "MOST_IN_ONE_FILE", 0)
    exported = export_model(make("base"), tmp_path / "out", "onnx")
    assert exported.files.keys() == {"config.json", "model.onnx", "model.onnx.data"}
    assert exported.size == sum(exported.files.values()) - exported.files["config.json"]


@pytest.mark.parametrize("case", ["base", "choices"])
def test_axes_of_onnx_have_names(case, tmp_path):
    onnx = pytest.importorskip("onnx", reason="pip install 'hf_bert_impl[export]'")
    export_model(make(case), tmp_path / "out", "onnx")
    graph = onnx.load(tmp_path / "out" / "model.onnx").graph
    axes = {
        value.name: [axis.dim_param for axis in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    names = ["batch_size", *(["num_choices"] if case == "choices" else []), "sequence_length"]
    assert axes["input_ids"] == axes["attention_mask"] == axes["token_type_ids"] == names
    assert axes["logits" if case == "choices" else "last_hidden_state"][:2] == names[:2]


@pytest.mark.parametrize("case", ["base", "choices"])
@pytest.mark.filterwarnings("ignore")
def test_axes_of_openvino_have_names(library, case, tmp_path):
    for name in formats.PACKAGES["openvino"]:
        library(name)
    export_model(make(case), tmp_path / "out", "openvino")
    graph = library("openvino").Core().read_model(tmp_path / "out/openvino_model.xml")
    layouts = [given.get_layout() for given in graph.get_parameters()]
    names = ["batch_size", *(["num_choices"] if case == "choices" else []), "sequence_length"]
    places = [[layout.get_index_by_name(name) for name in names] for layout in layouts]
    assert places == [[*range(len(names))]] * 3
