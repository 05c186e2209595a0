"""`hf-bert export`: the table, and what it refuses."""

import pytest
import torch

from hf_bert_impl.export import exporting

pytestmark = [pytest.mark.ecosystem, pytest.mark.usefixtures("hasty")]


def test_table_and_files(hf_bert, save_tiny, tmp_path):
    folder = tmp_path / "out"
    result = hf_bert("export", save_tiny(), folder, "--format", "torch-export")
    assert result.status == 0, result.err
    words = " ".join(result.out.split())
    assert "fp32 padded left logits" in words
    assert "passed of 6 comparisons" in words
    assert "size and speed, float32" in words
    assert "BertForMaskedLM here torch-export" in words
    assert "speed-up" in words
    assert f"{folder}: config.json, model.pt2, tokenizer.json" in words
    module = torch.export.load(folder / "model.pt2").module()
    ids = torch.tensor([[2, 5, 3]])
    found = module(input_ids=ids, attention_mask=ids * 0 + 1, token_type_ids=ids * 0)
    assert found["logits"].shape == (1, 3, 18)


def test_a_wrong_file_is_not_left_behind(hf_bert, save_tiny, tmp_path, monkeypatch):
    right = exporting.open_file

    def wrong(*arguments):
        run = right(*arguments)
        return lambda batch: {name: value * 1.001 for name, value in run(batch).items()}

    monkeypatch.setattr(exporting, "open_file", wrong)
    result = hf_bert("export", save_tiny(), tmp_path / "a" / "b", "--format", "torch-export")
    assert result.status == 1
    assert "FAILED in 6 of 6 comparisons" in " ".join(result.out.split())
    assert not (tmp_path / "a").exists()
