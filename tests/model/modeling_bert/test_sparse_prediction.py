"""Training scores labelled tokens only, and the last layer computes only what is read."""

import pytest
import torch

from hf_bert_impl.model import cpu_kernels, modeling_bert
from hf_bert_impl.parity import attended_positions, reference_model
from tests.model.cases import (
    LOSS_HEADS,
    MASKED_LM,
    NO_DROPOUT,
    assert_same,
    assert_same_gradients,
    gradients,
    masks,
    model_and_batch,
    outputs,
    random_labels,
    rows_through,
)


def scores(output):
    """The masked-LM logits of either head."""
    return output["prediction_logits" if "prediction_logits" in output else "logits"]


@pytest.mark.parametrize("padding", ["right", "none"])
@pytest.mark.parametrize("head", MASKED_LM)
def test_logits_are_those_of_the_labelled_tokens(head, padding):
    model, batch = model_and_batch(head, 1, padding, **NO_DROPOUT)
    labels = random_labels(head, model.config, batch)
    vocab_size = model.config.vocab_size
    every = scores(outputs(model, batch, **labels))
    assert every.shape == (5, 13, vocab_size)
    model.train()
    some = scores(outputs(model, batch, **labels))
    unlabelled = scores(outputs(model, batch))
    model.config.sparse_prediction = False
    dense = scores(outputs(model, batch, **labels))
    chosen = labels["labels"] != -100
    assert some.shape == (int(chosen.sum()), vocab_size)
    assert torch.allclose(some, every[chosen], atol=1e-5)
    assert unlabelled.shape == dense.shape == every.shape
    assert torch.allclose(dense[chosen], every[chosen], atol=1e-5)


@pytest.mark.parametrize("many", [0.0, 1.0])
@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("padding", ["right", "left", "holes", "both"])
@pytest.mark.parametrize("head", MASKED_LM)
def test_scores_of_padding_are_zero_and_all_else_is_equal(
    head, padding, labelled, many, monkeypatch
):
    monkeypatch.setattr(modeling_bert, "MANY_SCORED", many)
    model, batch = model_and_batch(head, 2, padding, labels=labelled, **NO_DROPOUT)
    scored = batch["attention_mask"] != 0
    if labelled:
        scored = scored | (batch["labels"] != -100)
    seen = rows_through(model.cls.predictions.decoder)
    found = model(**batch)
    assert seen == [scored.numel() if many == 0 else int(scored.sum())]
    model.config.padding_free = False
    expected = model(**batch)
    assert not scores(found)[~scored].any()
    assert torch.allclose(scores(found)[scored], scores(expected)[scored], atol=1e-5)
    assert scores(expected)[~scored].any() or scored.all()
    if labelled:
        assert torch.allclose(found.loss, expected.loss, rtol=1e-5)
        assert_same_gradients(gradients(model, found.loss), gradients(model, expected.loss))


@pytest.mark.parametrize("head", MASKED_LM)
def test_nothing_attended_or_labelled(head):
    mask = torch.zeros(2, 13, dtype=torch.long)
    model, batch = model_and_batch(head, 3, mask, labels=True, **NO_DROPOUT)
    output = model(**batch | {"labels": torch.full((2, 13), -100)})
    assert output.loss.isfinite()
    assert not scores(output).any()


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


@pytest.mark.parametrize("padding", ["left", "none"])
@pytest.mark.parametrize("head", LOSS_HEADS)
def test_a_hook_on_the_model_sees_padded_states_and_changes_nothing(head, padding):
    model, batch = model_and_batch(head, 2, padding, labels=True)
    seen = []
    expected = outputs(model, batch)
    model.bert.register_forward_hook(lambda module, args, output: seen.append(output))
    found = outputs(model, batch)
    assert seen[0].last_hidden_state.shape[1:] == (13, model.config.hidden_size)
    assert_same(found, expected, batch)


def test_only_masked_tokens_reach_the_last_feed_forward():
    model, batch = model_and_batch("BertForMaskedLM", 2, labels=True, num_hidden_layers=2)
    last = rows_through(model.bert.encoder.layer[-1].intermediate)
    model.train()(**batch)
    assert last == [int((batch["labels"] != -100).sum())]


@pytest.mark.parametrize("padding", ["right", "few", "none"])
@pytest.mark.parametrize("case", ["eval", "train", "labels", "dense labels"])
@pytest.mark.parametrize("head", MASKED_LM)
def test_scores_with_gradients_by_onednn(head, case, padding, by_onednn):
    """A caller may write into the scores as well, and the gradient of what is overwritten is 0."""
    mask = masks()["none" if padding == "none" else "right"]
    if padding == "few":  # below 30 %: padding is scored, then overwritten
        mask[1:] = 1
        mask[1, 10:] = 0
    fields = NO_DROPOUT | {"sparse_prediction": case != "dense labels"}
    model, batch = model_and_batch(head, 2, mask, labels="labels" in case, **fields)
    found = []
    for one in (reference_model(model), model):
        output = one.train(case != "eval")(**batch)
        loss = 0.0 if output.loss is None else output.loss
        if case != "labels":  # there the scores are those of labelled tokens
            logits = scores(output)
            logits[..., 0] = -1e9
            loss = loss + logits.softmax(-1)[attended_positions(batch)].pow(2).sum()
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
        product = cpu_kernels.linear(dense, states)
    expected = dense(states) + bias
    product += bias
    assert torch.allclose(product, expected, atol=1e-5)
    (gradient,) = torch.autograd.grad(product.sum(), bias)
    assert torch.equal(gradient, torch.full_like(bias, 15.0))
