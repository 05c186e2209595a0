"""Training scores labelled tokens only, and the last layer computes only what is read."""

import pytest
import torch

from hf_bert_impl.model import linear, modeling_bert
from hf_bert_impl.parity import attended_positions, reference_model
from tests.model.cases import (
    MASKED_LM,
    NO_DROPOUT,
    assert_same_as_upstream,
    assert_same_gradients,
    gradients,
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
    assert first == [tokens, 5 * 13 if mask is None else tokens]
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


@pytest.mark.parametrize("case", ["eval", "train", "dense labels"])
@pytest.mark.parametrize("head", MASKED_LM)
def test_scores_may_be_written_into(head, case, by_onednn):
    """The gradient of what is overwritten is 0."""
    fields = NO_DROPOUT | {"sparse_prediction": case != "dense labels"}
    model, batch = model_and_batch(head, 2, labels=case == "dense labels", **fields)
    found = []
    for one in (reference_model(model), model):
        output = one.train(case != "eval")(**batch)
        logits = scores(output)
        logits[..., 0] = -1e9
        loss = logits.softmax(-1)[attended_positions(batch)].pow(2).sum()
        found.append((loss, gradients(one, loss)))
    (expected_loss, expected), (loss, ours) = found
    assert torch.allclose(loss, expected_loss, rtol=1e-5)
    assert_same_gradients(ours, expected, tolerance=5e-5)


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("module", ["query", "intermediate", "output", "transform", "decoder"])
def test_any_product_can_be_written_into(module, recorded, by_onednn):
    """As a subclass does that adds a residual in place; those of `nn.Linear` can."""
    model, _ = model_and_batch("BertForMaskedLM", 2, **NO_DROPOUT)
    layer = model.bert.encoder.layer[0]
    dense = {
        "query": layer.attention.self.query,
        "intermediate": layer.intermediate.dense,
        "output": layer.output.dense,
        "transform": model.cls.predictions.transform.dense,
        "decoder": model.cls.predictions.decoder,
    }[module]
    states = torch.randn(3, 5, dense.in_features, generator=torch.Generator().manual_seed(1))
    bias = torch.randn(dense.out_features, requires_grad=True)
    with torch.set_grad_enabled(recorded):
        product = linear.linear(dense, states)
    expected = dense(states) + bias
    product += bias
    assert torch.allclose(product, expected, atol=1e-5)
    (gradient,) = torch.autograd.grad(product.sum(), bias)
    assert torch.equal(gradient, torch.full_like(bias, 15.0))
