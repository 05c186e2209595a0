"""Figures that model cards and transformers' documentation print for well-known checkpoints.

They show that tokenizer, weights and model work together; parity with transformers alone does not.
"""

import pytest
import torch

from hf_bert_impl import BertForMaskedLM, BertModel, BertTokenizer, QuestionAnsweringPipeline
from hf_bert_impl.inference.masked_words import best_tokens

pytestmark = pytest.mark.hub
CASED = "google-bert/bert-base-cased"
SQUAD = "google-bert/bert-large-uncased-whole-word-masking-finetuned-squad"
#: By sentence with one mask the best tokens for it, best first, with their probabilities.
MASKED = {
    "Nice to [MASK] you": {
        "meet": 0.9712,
        "see": 0.0267,
        "meeting": 0.0010,
        "have": 0.0003,
        "met": 0.0002,
    },
    "Hello I'm a [MASK] model.": {
        "fashion": 0.0902,
        "new": 0.0635,
        "male": 0.0623,
        "professional": 0.0442,
        "super": 0.0333,
    },
}


def test_token_ids_and_shapes():
    encoded = BertTokenizer.from_pretrained(CASED)("This is an input example", return_tensors="pt")
    assert encoded["input_ids"].tolist() == [[101, 1188, 1110, 1126, 7758, 1859, 102]]
    with torch.no_grad():
        outputs = BertModel.from_pretrained(CASED).eval()(**encoded)
    assert outputs.last_hidden_state.shape == (1, 7, 768)
    assert outputs.pooler_output.shape == (1, 768)


@pytest.mark.parametrize("text", MASKED)
def test_best_words_for_a_mask(text):
    tokenizer = BertTokenizer.from_pretrained(CASED)
    model = BertForMaskedLM.from_pretrained(CASED, dtype=torch.float32).eval()
    rows = [tokenizer(text)["input_ids"]]
    ((mask,),) = best_tokens(model, tokenizer, rows, len(MASKED[text]))
    found = {best["token"]: best["probability"] for best in mask["predictions"]}
    assert list(found) == list(MASKED[text])
    # Printed with four decimals: half a unit is for the rounding, half for another order of sums.
    assert found == pytest.approx(MASKED[text], abs=1e-4, rel=0)


def test_answer():
    answerer = QuestionAnsweringPipeline.from_pretrained(SQUAD)
    context = "Jim Henson was a nice puppet"
    answer = answerer(question="Who was Jim Henson?", context=context)["answer"]
    assert answer == "a nice puppet"
