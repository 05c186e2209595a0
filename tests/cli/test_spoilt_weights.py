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


TEXTS = ["nice to [MASK] you", "the river [MASK]"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@torch.no_grad()
def test_no_pipeline_gives_numbers_that_are_not_finite(dtype, save_tiny):
    """Of finite weights; each dtype is computed by torch itself, so on any CPU."""

    def load(name):
        """A model whose states beyond the first layer are not finite in this dtype."""
        folder = save_tiny(name)
        model = getattr(hf_bert_impl, name).from_pretrained(folder).to(dtype).eval()
        norm = model.base_model.encoder.layer[0].output.LayerNorm
        norm.weight.fill_(torch.finfo(dtype).max)
        model.save_pretrained(folder)
        return model, AutoTokenizer.from_pretrained(folder)

    model, _ = load("BertModel")
    encoder = TextEncoder(model.name_or_path, prepare=False)
    answering = QuestionAnsweringPipeline(*load("BertForQuestionAnswering"))
    classifier = TextClassifier(*load("BertForSequenceClassification"))
    masked, tokenizer = load("BertForMaskedLM")
    ids = encode_masked(tokenizer, TEXTS[0], 32)
    calls = [
        lambda: hf_bert_impl.inference.splade_vectors(masked, torch.tensor([ids])),
        lambda: encoder.encode(TEXTS),
        lambda: encoder.encode(TEXTS, output_value="token_embeddings"),
        lambda: asyncio.run(encoder.encode_async(TEXTS)),
        lambda: answering(question="river?", context="the river"),
        lambda: classifier.logits(TEXTS, TEXTS),
        lambda: best_tokens(masked, tokenizer, [ids], 2),
        lambda: pseudo_perplexity(masked, tokenizer, TEXTS),
    ]
    kind = str(dtype).removeprefix("torch.")
    for number, call in enumerate(calls):
        with pytest.raises(ValueError, match=f"outputs in {kind} are NaN or infinite") as e:
            pytest.fail(f"call {number} gave {call()}")
        assert ("Use `dtype='float32'`" in str(e.value)) == (dtype != torch.float32)
