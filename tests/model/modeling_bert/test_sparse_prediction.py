"""Training scores labelled tokens only, and the last layer computes only what is read."""

import pytest
import torch

from hf_bert_impl.model import modeling_bert
from hf_bert_impl.model.linear import rounded_up
from tests.model.cases import (
    MASKED_LM,
    NO_DROPOUT,
    assert_same_as_upstream,
    masks,
    model_and_batch,
    outputs,
    rows_through,
)


def scores(output):
    """The masked-LM logits of either head."""
    return output["prediction_logits" if "prediction_logits" in output else "logits"]


@pytest.mark.parametrize("many", [0.0, 1.0])
@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("head", MASKED_LM)
def test_scores_of_padding_are_zero_and_all_else_is_equal(head, labelled, many, monkeypatch):
    monkeypatch.setattr(modeling_bert, "MANY_SCORED", many)
    for padding in ("right", "holes"):
        model, batch = model_and_batch(head, 2, padding, labels=labelled, **NO_DROPOUT)
        scored = batch["attention_mask"] != 0
        if labelled:
            scored |= batch["labels"] != -100
        seen = rows_through(model.cls.predictions.decoder)
        assert not scores(model(**batch))[~scored].any()
        assert seen == [scored.numel() if many == 0 else int(scored.sum())]
        assert_same_as_upstream(model, batch, real=scored, with_gradients=True)


@pytest.mark.parametrize("padding", ["right", "left", "none"])
def test_the_last_layer_computes_what_the_head_reads(padding):
    head = "BertForSequenceClassification"
    model, batch = model_and_batch(head, 2, padding, num_hidden_layers=3)
    mask = masks()[padding]
    layers = model.bert.encoder.layer
    first = rows_through(layers[0].intermediate)
    last = rows_through(layers[-1].intermediate)
    quick = outputs(model, batch).logits
    states = outputs(model, batch, output_hidden_states=True)
    tokens = 5 * 13 if mask is None else int(mask.sum()) + int((mask[:, 0] == 0).sum())
    assert first == [rounded_up(tokens)] * 2
    assert last == [5, first[1]]
    assert torch.allclose(quick, states.logits, atol=1e-5)


@pytest.mark.parametrize("head", MASKED_LM)
def test_only_masked_tokens_reach_the_last_feed_forward(head):
    model, batch = model_and_batch(head, 2, labels=True, num_hidden_layers=2)
    last = rows_through(model.bert.encoder.layer[-1].intermediate)
    sparse = scores(model.train()(**batch))
    count = int((batch["labels"] != -100).sum())
    assert sparse.shape == (count, model.config.vocab_size)
    assert last == [count] or head == "BertForPreTraining"
    model.config.sparse_prediction = False
    assert scores(model(**batch)).shape == (5, 13, model.config.vocab_size)
