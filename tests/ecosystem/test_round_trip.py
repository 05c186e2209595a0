"""A saved checkpoint by CTranslate2: the same states at every token."""

import numpy as np
import pytest
import torch

import hf_bert_impl
from tests.model.cases import outputs, random_config, random_model
from tests.support.checkpoints import WORDS

pytestmark = pytest.mark.ecosystem


def test_ctranslate2(library, tmp_path):
    ct2 = library("ctranslate2")
    config = random_config(4, vocab_size=len(WORDS), type_vocab_size=2)
    model = random_model("BertModel", config)
    tokenizer = hf_bert_impl.BertTokenizer({word: number for number, word in enumerate(WORDS)})
    for one in (model, tokenizer):
        one.save_pretrained(tmp_path)
    texts = ["the river rose over night, and nobody saw it", "it rose", "nice to meet you ,"]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    place = ct2.converters.TransformersConverter(str(tmp_path)).convert(str(tmp_path / "ct2"))
    found = ct2.Encoder(place).forward_batch(tokenizer(texts)["input_ids"]).last_hidden_state
    real = batch["attention_mask"].bool()
    expected = outputs(model, batch).last_hidden_state[real]
    torch.testing.assert_close(torch.from_numpy(np.array(found))[real], expected, atol=1e-4, rtol=0)
