"""Pooling over the first and the last layer, and poolings by name."""

import numpy as np
import pytest
import torch
from transformers.models.bert import modeling_bert

from hf_bert_impl import TextEncoder
from hf_bert_impl.inference.pooling import NAMED_POOLINGS, Pooling

TEXTS = ["A man is playing a guitar on stage.", "ok", "", "Where is the nearest station, please?"]


@pytest.mark.parametrize("name", NAMED_POOLINGS)
def test_named_poolings_are_those_of_upstreams_states(minilm_path, name):
    encoder = TextEncoder.from_pretrained(minilm_path, device="cpu", pooling=Pooling.named(name))
    found = encoder.encode(TEXTS, token_budget=20)
    reference = modeling_bert.BertModel.from_pretrained(minilm_path).eval()
    for text, vector in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            ids = encoder.tokenizer(text, return_tensors="pt")
            states = reference(**ids, output_hidden_states=True).hidden_states
        last = states[-1][0]
        expected = {
            "cls": last[0],
            "mean": last.mean(dim=0),
            "max": last.amax(dim=0),
            "first-last-average": ((states[1][0] + last) / 2).mean(dim=0),
        }[name]
        assert np.abs(vector - expected.numpy()).max() < 2e-5


def test_a_given_pooling_leaves_the_modules_out(minilm_path):
    own = TextEncoder.from_pretrained(minilm_path, device="cpu")
    given = TextEncoder.from_pretrained(minilm_path, device="cpu", pooling=Pooling("mean"))
    vectors = given.encode(TEXTS)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    assert np.abs(lengths - 1).min() > 0.1
    assert np.abs(vectors / lengths - own.encode(TEXTS)).max() < 1e-6


def test_unknown_name():
    with pytest.raises(ValueError, match="'median'; expected one of cls, mean, max, first-last"):
        Pooling.named("median")
