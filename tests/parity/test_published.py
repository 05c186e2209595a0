"""Figures that model cards and transformers' documentation print for well-known checkpoints.

They show that tokenizer, weights and model work together; parity with transformers alone does not.
"""

import pytest
import torch

from hf_bert_impl import BertForMaskedLM, BertTokenizer, QuestionAnsweringPipeline
from hf_bert_impl.inference.masked_words import best_tokens

pytestmark = pytest.mark.hub
CASED = "google-bert/bert-base-cased"
SQUAD = "google-bert/bert-large-uncased-whole-word-masking-finetuned-squad"


def test_tokens_shapes_and_words():
    tokenizer = BertTokenizer.from_pretrained(CASED)
    encoded = tokenizer("This is an input example", return_tensors="pt")
    assert encoded["input_ids"].tolist() == [[101, 1188, 1110, 1126, 7758, 1859, 102]]
    model = BertForMaskedLM.from_pretrained(CASED, dtype=torch.float32).eval()
    with torch.no_grad():
        assert model.bert(**encoded).last_hidden_state.shape == (1, 7, 768)
    rows = [tokenizer("Nice to [MASK] you")["input_ids"]]
    ((mask,),) = best_tokens(model, tokenizer, rows, 5)
    words = [best["token"] for best in mask["predictions"]]
    assert words == ["meet", "see", "meeting", "have", "met"]
    # Printed with four decimals: half a unit is for the rounding, half for another order of sums.
    found = [best["probability"] for best in mask["predictions"]]
    assert found == pytest.approx([0.9712, 0.0267, 0.0010, 0.0003, 0.0002], abs=1e-4, rel=0)


def test_answer():
    answerer = QuestionAnsweringPipeline.from_pretrained(SQUAD)
    context = "Jim Henson was a nice puppet"
    answer = answerer(question="Who was Jim Henson?", context=context)["answer"]
    assert answer == "a nice puppet"
