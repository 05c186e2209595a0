"""`hf-bert demo`: runs offline on the installed weights."""

import re

import pytest
from transformers import AutoModel
from transformers.models.bert import modeling_bert

from hf_bert_impl import checkpoints
from hf_bert_impl.cli import demo


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_demo_shows_parity_similarity_and_speed(hf_bert, request, save_tiny, monkeypatch, real):
    if real:
        folder = request.getfixturevalue("minilm_path")
    else:
        request.getfixturevalue("hasty")
        folder = save_tiny("BertModel", max_position_embeddings=700)
        monkeypatch.setattr(checkpoints, "demo_folder", lambda: folder)
    result = hf_bert("demo")
    assert (result.status, result.err) == (0, "")
    assert "passed of" in result.out
    assert "gave hf_bert_impl.BertModel" in result.out
    assert all(sentence.split()[0] in result.out for sentence in demo.SENTENCES)
    assert re.search(r"8 sequences, \d+ tokens, [1-9]\d?% padding .* ms +\d\.\d\d", result.out)
    # transformers is left as it was found.
    assert type(AutoModel.from_pretrained(folder)) is modeling_bert.BertModel
