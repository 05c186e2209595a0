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


def test_with_attentions_padding_is_computed_as_in_transformers():
    model, batch = model_and_batch("BertModel", 1, "holes")
    options = {"output_hidden_states": True, "output_attentions": True}
    found = outputs(model, batch, **options)
    reference = reference_model(model)
    reference.set_attn_implementation("eager")
    expected = outputs(reference, batch, **options)
    for name in ("hidden_states", "attentions"):
        for ours, theirs in zip(found[name], expected[name], strict=True):
            assert torch.allclose(ours, theirs, atol=1e-5)


def test_a_document_does_not_touch_another():
    model, batch = model_and_batch("BertModel", 2)
    before = outputs(model, batch).last_hidden_state
    others = (batch["input_ids"][2] + 1) % model.config.vocab_size
    batch["input_ids"][2] = others * batch["attention_mask"][2]
    after = outputs(model, batch).last_hidden_state
    rows = torch.tensor([0, 1, 3, 4])
    assert torch.equal(before[rows], after[rows])
    assert not torch.equal(before[2], after[2])


@pytest.mark.parametrize("padding_free", [True, False])
def test_a_batch_without_attended_position_trains(padding_free):
    nothing = torch.zeros(5, 13, dtype=torch.long)
    head = "BertForTokenClassification"
    model, batch = model_and_batch(head, 4, nothing, labels=True, padding_free=padding_free)
    output = model.train()(**batch, output_hidden_states=True)
    assert all(x.isfinite().all() for x in (output.loss, output.logits, *output.hidden_states))
    assert all(gradient.isfinite().all() for gradient in gradients(model, output.loss).values())


def test_gradients_reach_the_hidden_states_that_are_returned():
    model, batch = model_and_batch("BertModel", 3, "left")
    output = model(**batch, output_hidden_states=True)
    for states in output.hidden_states:
        states.retain_grad()
    (output.last_hidden_state.sum() + output.pooler_output.pow(2).sum()).backward()
    assert all(states.grad is not None and states.grad.any() for states in output.hidden_states)
    assert output.hidden_states[-1] is output.last_hidden_state


def test_embeddings_are_computed_as_the_ids_are():
    """The pad token is told by its row of the table, so that padding is left out as well."""
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


# Transforms of torch.func, under which values cannot be looked at.


@pytest.mark.parametrize("head", ["BertModel", "BertForMaskedLM", "BertForMultipleChoice"])
def test_vmap_over_token_ids(head):
    """Masks may be mapped, or not."""
    model, batch = model_and_batch(head, 1)
    ids, mask = batch["input_ids"], batch["attention_mask"]

    def call(ids, mask):
        return model(ids[None], attention_mask=mask[None])[0][0]

    for one_mask, axes in ((mask, 0), (mask[1], (0, None))):
        found = torch.vmap(call, in_dims=axes)(ids, one_mask)
        given = {"input_ids": ids, "attention_mask": one_mask.expand_as(mask).contiguous()}
        expected = outputs(reference_model(model), given)[0]
        assert found.shape == expected.shape
        assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("head", LOSS_HEADS)
def test_gradients_of_each_sample(head, training):
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
