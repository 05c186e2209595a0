"""How forward is asked and what it returns, beyond what transformers' own suite tests."""

import inspect

import pytest
import torch
from transformers.models.bert import modeling_bert as upstream

import hf_bert_impl
from hf_bert_impl.parity import reference_model
from tests.model.cases import HEADS, assert_same_as_upstream, gradients, model_and_batch, outputs


@pytest.mark.parametrize("head", HEADS)
def test_signature_and_output_are_upstreams(head):
    ours = inspect.signature(getattr(hf_bert_impl, head).forward).parameters
    theirs = inspect.signature(getattr(upstream, head).forward).parameters
    assert [p for p in ours if p in theirs] == list(theirs)
    model, batch = model_and_batch(head, labels=True)
    a, b = model(**batch), reference_model(model)(**batch)
    assert (type(a).__name__, [*a]) == (type(b).__name__, [*b])
    plain = model(**batch, return_dict=False)
    for value, name in zip(plain, a, strict=True):
        assert not isinstance(value, torch.Tensor) or torch.equal(value, a[name])


@pytest.mark.parametrize("padding", ["right", "none"])
def test_hidden_states_by_number(padding):
    model, batch = model_and_batch("BertModel", 1, padding, num_hidden_layers=4)
    everything = outputs(model, batch, output_hidden_states=True).hidden_states
    for wanted, kept in (([0, 2], {0, 2}), ([-1], {4}), (3, {3}), ([9], set())):
        chosen = outputs(model, batch, output_hidden_states=wanted).hidden_states
        assert [number for number, states in enumerate(chosen) if states is not None] == [*kept]
        assert all(torch.equal(chosen[number], everything[number]) for number in kept)


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_changes_no_gradient(reentrant):
    found, calls = [], []
    model, batch = model_and_batch("BertForPreTraining", 4, "left", labels=True)
    model.train().bert.encoder.layer[0].attention.register_forward_hook(lambda *_: calls.append(1))
    for _ in range(2):
        torch.manual_seed(5)
        found.append(gradients(model, model(**batch).loss))
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    assert len(calls) == 1 + 2  # computed again on the way back
    torch.testing.assert_close(found[0], found[1], atol=1e-7, rtol=0)


@pytest.mark.parametrize("padding", ["right", "left", "none"])
@pytest.mark.parametrize("way", ["through NumPy", "replaced"])
@pytest.mark.parametrize("head", ["BertModel", "BertForMaskedLM", "BertLMHeadModel"])
def test_buffers_of_ids_are_read(head, way, padding):
    """Whoever writes into them gets stock's numbers, with and without token types in the call."""
    sizes = dict(type_vocab_size=3, max_position_embeddings=19)
    model, batch = model_and_batch(head, 4, padding, **sizes)
    reference = reference_model(model)
    places = (torch.arange(19)[None] * 5 + 2) % 19
    for name, new in (("position_ids", places), ("token_type_ids", places % 3)):
        for one in (model, reference):
            embeddings = one.base_model.embeddings
            if way == "replaced":
                setattr(embeddings, name, new.clone())
            else:
                getattr(embeddings, name).numpy()[:] = new.numpy()
    given = {name: batch.get(name) for name in ("input_ids", "attention_mask") if name in batch}
    for extra in ({}, {"token_type_ids": batch["token_type_ids"]}):
        assert_same_as_upstream(model, given | extra, reference=reference)
    positions = {"position_ids": batch["position_ids"]}
    assert_same_as_upstream(model, given | positions, reference=reference)
    assert_same_as_upstream(model.prepare_for_inference(), given, reference=reference)
