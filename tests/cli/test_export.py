"""`hf-bert export`: what it prints, and that a wrong graph is not left behind."""

import pytest

from hf_bert_impl import export

pytestmark = pytest.mark.ecosystem
for name in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(name)


def test_the_command(hf_bert, save_tiny, tmp_path, monkeypatch):
    folder, model = tmp_path / "out", save_tiny()
    words = hf_bert("export", model, "-o", folder).words
    assert "fp32 padded left logits" in words
    assert "6 comparisons passed" in words
    assert f"{folder}: config.json" in words
    right = export.open_graph

    def wrong(*arguments):
        run = right(*arguments)
        return lambda batch: {name: value * 1.001 for name, value in run(batch).items()}

    monkeypatch.setattr(export, "open_graph", wrong)
    result = hf_bert("export", model, "-o", tmp_path / "a" / "b")
    assert result.status == 1
    assert "FAILED in 6 of 6 comparisons" in " ".join(result.out.split())
    assert not (tmp_path / "a").exists()
