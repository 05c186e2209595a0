"""`hf-bert fill-mask`: the best tokens of every mask, or why there are none."""

import json

import pytest
import torch
from transformers.models.bert import modeling_bert

import hf_bert_impl


def test_probabilities_are_upstreams(hf_bert, save_tiny):
    folder, text = save_tiny(), "nice to [MASK] you and the [MASK]"
    result = hf_bert("fill-mask", folder, text, "--top-k", 3, "--json")
    assert result.status == 0
    data = json.loads(result.out)
    assert data["text"] == text
    assert [mask["position"] for mask in data["masks"]] == [3, 7]

    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(folder)
    reference = modeling_bert.BertForMaskedLM.from_pretrained(folder).eval()
    with torch.no_grad():
        logits = reference(**tokenizer(text, return_tensors="pt")).logits[0]
    for mask in data["masks"]:
        best = logits[mask["position"]].softmax(dim=-1).topk(3)
        found = mask["predictions"]
        assert [item["id"] for item in found] == best.indices.tolist()
        assert [item["probability"] for item in found] == pytest.approx(best.values.tolist())
        assert [item["token"] for item in found] == tokenizer.convert_ids_to_tokens(best.indices)


def test_table_has_a_line_a_token(hf_bert, save_tiny):
    result = hf_bert("fill-mask", save_tiny(), "nice to [MASK] you", "--top-k", 4)
    assert result.status == 0
    assert "nice to [MASK] you" in result.out
    ranks = [line.split()[0] for line in result.out.splitlines() if line.strip()[:1].isdigit()]
    assert ranks == ["1", "2", "3", "4"]


def test_more_tokens_than_the_vocabulary(hf_bert, save_tiny):
    result = hf_bert("fill-mask", save_tiny(), "[MASK]", "--top-k", 1000, "--json")
    found = json.loads(result.out)["masks"][0]["predictions"]
    assert sum(item["probability"] for item in found) == pytest.approx(1, abs=1e-5)


def test_pretraining_checkpoints_have_the_head_too(hf_bert, save_tiny):
    assert hf_bert("fill-mask", save_tiny("BertForPreTraining"), "[MASK] .").status == 0


def test_bad_texts(hf_bert, one_error_line, save_tiny):
    folder = save_tiny()
    one_error_line(hf_bert("fill-mask", folder, "nice to meet you"), "no mask", "[MASK]")
    one_error_line(hf_bert("fill-mask", folder, " "), "empty", "[MASK]")
    one_error_line(hf_bert("fill-mask", folder, "[MASK]" + " the" * 40), "43 tokens", "31")
    one_error_line(hf_bert("fill-mask", folder, "[MASK]", "--top-k", 0), "--top-k")


def test_bad_folders(hf_bert, one_error_line, save_tiny, tmp_path):
    """The rest of what is wrong with checkpoints stands in `tests/test_checkpoints.py`."""
    one_error_line(hf_bert("fill-mask", tmp_path / "none", "[MASK]"), "there is no folder")
    folder = save_tiny(tokenizer=False)
    one_error_line(hf_bert("fill-mask", folder, "[MASK]"), "no tokenizer", "vocab.txt")
    result = hf_bert("fill-mask", save_tiny("BertModel"), "nice to [MASK] you")
    one_error_line(result, "lacks weights of BertForMaskedLM", "cls.predictions")
