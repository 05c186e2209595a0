"""Padding is not computed: zeros in its place, and other rows are as they were."""

import pytest
import torch

from hf_bert_impl.parity import reference_model
from tests.model.cases import (
    LOSS_HEADS,
    NO_DROPOUT,
    assert_same,
    assert_same_gradients,
    gradients,
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
    for given, pad in ((others, 0), (embeddings, None)):
        model.config.pad_token_id = pad
        batch["inputs_embeds"] = given
        everywhere = torch.ones_like(real)
        assert_same(outputs(model, batch), outputs(reference_model(model), batch), everywhere)


def test_heads_of_the_pooled_vector_do_not_compute_words_that_are_left_out():
    model, batch = model_and_batch("BertForSequenceClassification", 2)
    batch["input_ids"] = batch["input_ids"].clamp(min=5)
    rows = rows_through(model.bert.encoder.layer[0].intermediate)
    outputs(model, batch)
    assert rows == [int(batch["attention_mask"].sum())]


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
