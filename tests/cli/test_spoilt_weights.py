"""NaN in weights that are not taken do no harm, and no NaN leaves a model."""

import asyncio

import pytest
import torch
from transformers import AutoTokenizer

import hf_bert_impl
import hf_bert_impl.inference
from hf_bert_impl import QuestionAnsweringPipeline, TextEncoder
from hf_bert_impl.inference.classifier import TextClassifier
from hf_bert_impl.inference.masked_words import best_tokens, encode_masked
from hf_bert_impl.tasks.pseudo_perplexity import pseudo_perplexity


def test_a_head_that_is_drawn_anew_may_be_spoilt(hf_bert, place):
    """Weights that a task does not use are not checked."""
    model = hf_bert_impl.BertForMaskedLM.from_pretrained("BertForMaskedLM")
    model.cls.predictions.transform.dense.weight.data.fill_(torch.nan)
    model.save_pretrained("BertForMaskedLM")
    assert hf_bert("embed", "BertForMaskedLM", "texts.txt", "-o", "new/out.npy").status == 0


def overflow(model, dtype=torch.float32):
    """All weights are finite. The states beyond the first layer are not, in this dtype."""
    model.to(dtype).base_model.encoder.layer[0].output.LayerNorm.weight.data.fill_(
        torch.finfo(dtype).max
    )
    return model.eval()


TEXTS = ["nice to [MASK] you", "the river [MASK]"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_no_pipeline_gives_numbers_that_are_not_finite(dtype, save_tiny):
    """Weights that are finite; each dtype is computed by torch itself, so on any CPU."""

    def load(name):
        folder = save_tiny(name)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return overflow(getattr(hf_bert_impl, name).from_pretrained(folder), dtype), tokenizer

    folder = save_tiny("BertModel")
    overflow(hf_bert_impl.BertModel.from_pretrained(folder), dtype).save_pretrained(folder)
    encoder = TextEncoder(folder, prepare=False)
    answering = QuestionAnsweringPipeline(*load("BertForQuestionAnswering"))
    classifier = TextClassifier(*load("BertForSequenceClassification"))
    masked, tokenizer = load("BertForMaskedLM")
    ids = encode_masked(tokenizer, TEXTS[0], 32)
    pair = {"question": "river?", "context": "the river"}

    @torch.no_grad()
    def sparse():
        return hf_bert_impl.inference.splade_vectors(masked, torch.tensor([ids]))

    calls = [
        sparse,
        lambda: encoder.encode(TEXTS),
        lambda: encoder.encode(TEXTS, output_value="token_embeddings"),
        lambda: asyncio.run(encoder.encode_async(TEXTS)),
        lambda: answering(**pair),
        lambda: classifier.logits(TEXTS, TEXTS),
        lambda: best_tokens(masked, tokenizer, [ids], 2),
        lambda: pseudo_perplexity(masked, tokenizer, TEXTS),
    ]
    kind = str(dtype).removeprefix("torch.")
    for number, call in enumerate(calls):
        with pytest.raises(ValueError, match=f"outputs in {kind} are NaN or infinite") as e:
            pytest.fail(f"call {number} gave {call()}")
        assert ("Use `dtype='float32'`" in str(e.value)) == (dtype != torch.float32)
