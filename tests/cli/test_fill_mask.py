"""`hf-bert fill-mask`: the best tokens of every mask, or why there are none."""

import json


def test_json(hf_bert, save_tiny):
    text = "nice to [MASK] you and the [MASK]"
    result = hf_bert("fill-mask", save_tiny(), text, "--top-k", 3, "--json")
    assert result.status == 0
    data = json.loads(result.out)
    assert data["text"] == text
    assert [mask["position"] for mask in data["masks"]] == [3, 7]
    assert [len(mask["predictions"]) for mask in data["masks"]] == [3, 3]


def test_table_has_a_line_a_token(hf_bert, save_tiny):
    """A pre-training checkpoint has the head, too."""
    folder = save_tiny("BertForPreTraining")
    result = hf_bert("fill-mask", folder, "nice to [MASK] you", "--top-k", 4)
    assert result.status == 0
    assert "nice to [MASK] you" in result.out
    ranks = [line.split()[0] for line in result.out.splitlines() if line.strip()[:1].isdigit()]
    assert ranks == ["1", "2", "3", "4"]


def test_bad_input(hf_bert, one_error_line, save_tiny, tmp_path):
    """The rest stands in test_checkpoints.py and inference/test_masked_words.py."""
    folder = save_tiny()
    one_error_line(hf_bert("fill-mask", folder, "nice to meet you"), "no mask", "[MASK]")
    one_error_line(hf_bert("fill-mask", folder, "[MASK]", "--top-k", 0), "--top-k")
    one_error_line(hf_bert("fill-mask", tmp_path / "none", "[MASK]"), "there is no folder")
    folder = save_tiny("BertForPreTraining", tokenizer=False)
    one_error_line(hf_bert("fill-mask", folder, "[MASK]"), "no tokenizer", "vocab.txt")
    result = hf_bert("fill-mask", save_tiny("BertModel"), "nice to [MASK] you")
    one_error_line(result, "weights of BertForMaskedLM", "cls.predictions")
