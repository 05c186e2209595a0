"""The words for the masks of a text: upstream's probabilities, and texts that have none."""

import pytest
import torch
from transformers.models.bert import modeling_bert

import hf_bert_impl
from hf_bert_impl.errors import InputError
from hf_bert_impl.inference.masked_words import best_tokens, encode_masked


@pytest.fixture
def folder(save_tiny):
    return save_tiny()


@pytest.fixture
def tokenizer(folder):
    return hf_bert_impl.BertTokenizer.from_pretrained(folder)


def test_probabilities_are_upstreams(folder, tokenizer):
    texts = ["nice to [MASK] you and the [MASK]", "[MASK]", "the river [MASK] over"]
    rows = [encode_masked(tokenizer, text, 31) for text in texts]
    model = hf_bert_impl.BertForMaskedLM.from_pretrained(folder).eval()
    texts_masks = best_tokens(model, tokenizer, rows, 1000)  # more than the vocabulary has
    positions = [[mask["position"] for mask in masks] for masks in texts_masks]
    assert positions == [[3, 7], [1], [3]]
    reference = modeling_bert.BertForMaskedLM.from_pretrained(folder).eval()
    for ids, masks in zip(rows, texts_masks, strict=True):
        with torch.no_grad():
            logits = reference(torch.tensor([ids])).logits[0]
        for mask in masks:
            best = logits[mask["position"]].softmax(dim=-1).sort(descending=True)
            found = mask["predictions"]
            assert [item["id"] for item in found] == best.indices.tolist()
            probabilities = best.values.tolist()
            assert [item["probability"] for item in found] == pytest.approx(probabilities, rel=1e-5)
            tokens = tokenizer.convert_ids_to_tokens(best.indices)
            assert [item["token"] for item in found] == tokens


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nice to meet you", r"'nice to meet you' has no \[MASK\]"),
        (" ", r"The text is empty.*\[MASK\]"),
        ("[MASK]" + " the" * 40, "has 43 tokens. The limit is 31"),
    ],
)
def test_texts_without_an_answer(tokenizer, text, words):
    with pytest.raises(InputError, match=words):
        encode_masked(tokenizer, text, 31)
    tokenizer.mask_token = None
    with pytest.raises(InputError, match=r"has no mask token\. Set mask_token"):
        encode_masked(tokenizer, text, 31)
