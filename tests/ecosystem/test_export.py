"""`hf-bert export` for ONNX Runtime and OpenVINO: any batch and length, every kind of model."""

import pytest

from hf_bert_impl.export import formats
from hf_bert_impl.export.exporting import export_model
from tests.export.cases import assert_exports, make

pytestmark = pytest.mark.ecosystem

RUNS = [
    *(("onnx", case) for case in ("base", "choices", "words", "relative", "pruned", "codertimo")),
    *(("openvino", case) for case in ("two outputs", "decoder", "choices", "sinusoidal")),
]


@pytest.mark.parametrize(("kind", "case"), RUNS)
@pytest.mark.filterwarnings("ignore")
def test_every_batch_gives_what_the_model_gives(library, kind, case, tmp_path):
    for name in formats.PACKAGES[kind]:
        library(name)
    assert_exports(make(case), tmp_path / "out", kind)
    names = ["batch_size", *(["num_choices"] if case == "choices" else []), "sequence_length"]
    if kind == "onnx":
        graph = library("onnx").load(tmp_path / "out" / "model.onnx").graph
        given, made = ([axes(value) for value in values] for values in (graph.input, graph.output))
        assert given == [names] * 3
        assert all(found[0] == names[0] for found in made)
        assert made[0][:2] == names[:2]
    else:
        graph = library("openvino").Core().read_model(tmp_path / "out" / "openvino_model.xml")
        layouts = [value.get_layout() for value in graph.get_parameters()]
        places = [[layout.get_index_by_name(name) for name in names] for layout in layouts]
        assert places == [[*range(len(names))]] * 3


def axes(value):
    """The names of a tensor's axes in an ONNX graph."""
    return [axis.dim_param for axis in value.type.tensor_type.shape.dim]


@pytest.mark.filterwarnings("ignore")
def test_onnx_of_a_certain_opset(library, tmp_path):
    for name in formats.PACKAGES["onnx"]:
        library(name)
    model = make("base")
    export_model(model, tmp_path / "out", "onnx", opset=18)
    made = library("onnx").load(tmp_path / "out/model.onnx").opset_import
    assert made[0].version == 18
    # Two that there are not, which are refused before anything is traced, and one.
    for opset in (0, 99, 7):
        said = rf"`opset` is {opset}, in which this model cannot be written"
        with pytest.raises(ValueError, match=said):
            export_model(model, tmp_path / "other", "onnx", opset=opset)
    assert not (tmp_path / "other").exists()


@pytest.mark.filterwarnings("ignore")
def test_large_weights_lie_in_a_file_of_their_own(library, tmp_path, monkeypatch):
    for name in formats.PACKAGES["onnx"]:
        library(name)
    monkeypatch.setattr(formats, "MOST_IN_ONE_FILE", 0)
    exported = export_model(make("base"), tmp_path / "out", "onnx")
    assert exported.files.keys() == {"config.json", "model.onnx", "model.onnx.data"}
    assert exported.size == sum(exported.files.values()) - exported.files["config.json"]
