"""`hf-bert fill-mask`: the best tokens of every mask."""

from transformers.models.bert import modeling_bert

from hf_bert_impl import BertTokenizer


def test_the_best_tokens_of_every_mask(hf_bert, save_tiny):
    """Also of a pre-training checkpoint; as JSON and as a table with a line a token."""
    text, folder = "nice to [MASK] you and the [MASK]", save_tiny("BertForPreTraining")
    data = hf_bert("fill-mask", folder, text, "--top-k", 99, "--json").report
    assert data["text"] == text
    assert [mask["position"] for mask in data["masks"]] == [3, 7]
    tokenizer = BertTokenizer.from_pretrained(folder)
    batch = tokenizer(text, return_tensors="pt")
    logits = modeling_bert.BertForMaskedLM.from_pretrained(folder).eval()(**batch).logits
    scores, best = logits[0, [3, 7]].softmax(-1).sort(descending=True)  # all of the vocabulary
    for mask, row, values in zip(data["masks"], best.tolist(), scores.tolist(), strict=True):
        found = mask["predictions"]
        assert [it["id"] for it in found] == row
        assert [it["token"] for it in found] == tokenizer.convert_ids_to_tokens(row)
        assert all(abs(it["probability"] - v) < 1e-5 for it, v in zip(found, values, strict=True))
    result = hf_bert("fill-mask", folder, "nice to [MASK] you", "--top-k", 4)
    assert "nice to [MASK] you" in result.out
    ranks = [line.split()[0] for line in result.out.splitlines() if line.strip()[:1].isdigit()]
    assert ranks == ["1", "2", "3", "4"]
