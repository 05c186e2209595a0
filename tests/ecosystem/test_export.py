"""`hf-bert export` for ONNX Runtime and OpenVINO: any batch and length, every kind of model."""

import pytest

from hf_bert_impl.export import formats
from hf_bert_impl.export.exporting import export_model
from hf_bert_impl.export.options import PACKAGES
from tests.export.cases import assert_exports, make

pytestmark = [pytest.mark.ecosystem, pytest.mark.filterwarnings("ignore")]
RUNS = [
    *(("onnx", case) for case in ("choices", "words", "relative", "pruned", "codertimo")),
    *(("openvino", case) for case in ("two outputs", "decoder", "choices", "sinusoidal")),
]


@pytest.mark.parametrize(("kind", "case"), RUNS)
def test_every_batch_gives_what_the_model_gives(library, kind, case, tmp_path):
    for name in PACKAGES[kind]:
        library(name)
    assert_exports(make(case), tmp_path / "out", kind)
    names = ["batch_size", *(["num_choices"] if case == "choices" else []), "sequence_length"]
    if kind == "onnx":
        graph = library("onnx").load(tmp_path / "out" / "model.onnx").graph
        for value in graph.input:
            assert [axis.dim_param for axis in value.type.tensor_type.shape.dim] == names


def test_onnx_of_a_certain_opset_with_weights_in_a_file_of_their_own(
    library, tmp_path, monkeypatch
):
    for name in PACKAGES["onnx"]:
        library(name)
    monkeypatch.setattr(formats, "MOST_IN_ONE_FILE", 0)
    model = make("base")
    exported = export_model(model, tmp_path / "out", "onnx", opset=18)
    assert library("onnx").load(tmp_path / "out/model.onnx").opset_import[0].version == 18
    assert exported.files.keys() == {"config.json", "model.onnx", "model.onnx.data"}
    assert exported.size == sum(exported.files.values()) - exported.files["config.json"]
    with pytest.raises(ValueError, match="`opset` is 99, and this model cannot be written in it"):
        export_model(model, tmp_path / "other", "onnx", opset=99)
    assert not (tmp_path / "other").exists()
