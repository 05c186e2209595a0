"""Padding is not computed, and neither are scores and states that nobody reads."""

import pytest
import torch

from hf_bert_impl.model import modeling_bert
from hf_bert_impl.model.linear import rounded_up
from hf_bert_impl.parity import reference_model
from tests.model.cases import (
    LOSS_HEADS,
    MASKED_LM,
    NO_DROPOUT,
    assert_same,
    assert_same_as_upstream,
    assert_same_gradients,
    gradients,
    masks,
    model_and_batch,
    outputs,
    rows_through,
)


@pytest.mark.parametrize("pad", [0, 7])
@pytest.mark.parametrize("padding", ["right", "left", "holes"])
def test_hidden_states_under_padding_are_zero(padding, pad):
    model, batch = model_and_batch("BertModel", 1, padding, pad_token_id=pad)
    mask = batch["attention_mask"]
    output = outputs(model, batch, output_hidden_states=True)
    for states in (output.last_hidden_state, *output.hidden_states):
        assert not states[mask == 0].any()
        assert states[mask == 1].abs().sum(-1).all()


@pytest.mark.parametrize("padding_free", [True, False])
def test_a_batch_without_attended_position_trains(padding_free):
    nothing = torch.zeros(5, 13, dtype=torch.long)
    head = "BertForTokenClassification"
    model, batch = model_and_batch(head, 4, nothing, labels=True, padding_free=padding_free)
    output = model.train()(**batch, output_hidden_states=True)
    assert all(x.isfinite().all() for x in (output.loss, output.logits, *output.hidden_states))
    assert all(gradient.isfinite().all() for gradient in gradients(model, output.loss).values())


def test_embeddings_are_computed_as_the_ids_are():
    """The pad token is recognised by its row of the table, so that padding is skipped too."""
    model, batch = model_and_batch("BertForMaskedLM", 2, pad_token_id=0)
    expected = outputs(model, batch).logits
    rows = rows_through(model.bert.encoder.layer[0].intermediate)
    embeddings = model.get_input_embeddings()(batch.pop("input_ids"))
    assert torch.equal(outputs(model, batch, inputs_embeds=embeddings).logits, expected)
    real = batch["attention_mask"] != 0
    assert rows.pop() == real.sum()
    # Another number there, or no such token: then all is computed, as transformers does.
    others = torch.where(real[..., None], embeddings, 0.5)
    last = torch.where(
        real[..., None], embeddings, model.get_input_embeddings().weight[-1].detach()
    )
    for given, pad in ((others, 0), (embeddings, None), (last, -1)):
        model.config.pad_token_id = pad
        batch["inputs_embeds"] = given
        everywhere = torch.ones_like(real)
        assert_same(outputs(model, batch), outputs(reference_model(model), batch), everywhere)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("head", LOSS_HEADS)
def test_gradients_of_each_sample(head, training):
    """By torch.func, under which values cannot be looked at."""
    model, batch = model_and_batch(head, 1, labels=True, **NO_DROPOUT)
    model.train(training)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters, sample):
        inputs = {name: value[None] for name, value in sample.items()}
        return torch.func.functional_call(model, parameters, (), inputs).loss

    each = torch.func.grad(loss)
    found = torch.vmap(each, in_dims=(None, 0), randomness="different")(parameters, batch)
    for row in (0, 3):
        sample = {name: value[row : row + 1] for name, value in batch.items()}
        expected = gradients(model, model(**sample).loss)
        assert_same_gradients({name: g[row] for name, g in found.items()}, expected)


# --- what is read -------------------------------------------------------------------------------


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
    # Words that are masked out are not computed either, though their scores are in other heads.
    first.clear()
    batch["input_ids"] = batch["input_ids"].clamp(min=5)
    outputs(model, batch)
    assert first == [rounded_up(tokens)]


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
