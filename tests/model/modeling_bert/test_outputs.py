"""What forward returns and how it is asked: tuples, chosen hidden states, chunks, checkpointing."""

import inspect
from contextlib import nullcontext

import pytest
import torch
from transformers.models.bert import modeling_bert as upstream

import hf_bert_impl
from hf_bert_impl import BertModel
from hf_bert_impl.model.configuration_bert import CODERTIMO_FIELDS
from hf_bert_impl.parity import reference_model
from tests.model.cases import (
    HEADS,
    assert_same,
    default,
    gradients,
    masks,
    model_and_batch,
    outputs,
    random_config,
)


@pytest.mark.parametrize("head", HEADS)
def test_signature_and_output_are_upstreams(head):
    ours = inspect.signature(getattr(hf_bert_impl, head).forward).parameters
    theirs = inspect.signature(getattr(upstream, head).forward).parameters
    assert [p for p in ours if p in theirs] == list(theirs)
    model, batch = model_and_batch(head, labels=True)
    a, b = model(**batch), reference_model(model)(**batch)
    assert list(a.keys()) == list(b.keys())
    assert [type(x) for x in a.values()] == [type(x) for x in b.values()]
    assert type(a).__name__ == type(b).__name__


@pytest.mark.parametrize("head", HEADS)
def test_return_dict_false_gives_the_same_as_a_tuple(head):
    model, batch = model_and_batch(head, 2, labels=True)
    wanted = {"output_hidden_states": True, "output_attentions": True}
    named = outputs(model, batch, **wanted)
    plain = outputs(model, batch, **wanted, return_dict=False)
    model.config.return_dict = False
    by_config = outputs(model, batch, **wanted)
    for values in (plain, by_config):
        assert isinstance(values, tuple)
        assert len(values) == len(named)
        for value, name in zip(values, named, strict=True):
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, named[name])


@pytest.mark.parametrize("padding", ["right", "none"])
def test_hidden_states_by_number(padding):
    model, batch = model_and_batch("BertModel", 1, padding, num_hidden_layers=4)
    everything = outputs(model, batch, output_hidden_states=True).hidden_states
    for wanted, kept in (([0, 2], {0, 2}), ([-1], {4}), (3, {3}), ([9], set())):
        chosen = outputs(model, batch, output_hidden_states=wanted).hidden_states
        assert len(chosen) == 5
        for number, states in enumerate(chosen):
            assert (states is not None) == (number in kept)
            if number in kept:
                assert torch.equal(states, everything[number])


VARIANTS = pytest.mark.parametrize("fields", [{}, CODERTIMO_FIELDS], ids=["bert", "codertimo"])


@VARIANTS
@pytest.mark.parametrize("padding", ["right", "none"])
@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_chunked_feed_forward(padding, chunk, fields):
    """Any chunk size, not only a divisor of the length."""
    whole, batch = model_and_batch("BertModel", 3, padding, **fields)
    fields = fields | {"chunk_size_feed_forward": chunk}
    chunked, _ = model_and_batch("BertModel", 3, padding, **fields)
    assert_same(outputs(chunked, batch), outputs(whole, batch), batch, tolerance=1e-6)


@VARIANTS
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("padding", ["right", "left", "none"])
def test_gradient_checkpointing_changes_no_gradient(padding, reentrant, fields):
    found = []
    for checkpointing in (False, True):
        model, batch = model_and_batch("BertForPreTraining", 4, padding, labels=True, **fields)
        model.train()
        calls = []
        layer = model.bert.encoder.layer[0].attention
        layer.register_forward_hook(lambda *args, calls=calls: calls.append(1))
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        torch.manual_seed(5)
        found.append(gradients(model, model(**batch).loss))
    assert len(calls) == 2  # computed again on the way back
    for name, gradient in found[0].items():
        assert torch.allclose(gradient, found[1][name], atol=1e-7), name


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("padding", ["left", "none"])
@pytest.mark.parametrize("head", HEADS)
def test_the_defaults_of_torch_are_not_asked(head, padding, training):
    model, batch = model_and_batch(head, 2, padding, labels=True)
    model.train(training)
    batch["head_mask"] = torch.ones(model.config.num_attention_heads)
    parameters = list(model.base_model.encoder.parameters())
    found = {}
    for what in ("nothing", "device", "dtype"):
        torch.manual_seed(3)
        with default(what) if what != "nothing" else nullcontext():
            output = model(**batch, output_hidden_states=True)
            loss = output.loss if "loss" in output else output.pooler_output.sum()
            found[what] = [loss, torch.autograd.grad(loss, parameters), output.hidden_states]
    for what in ("device", "dtype"):
        for a, b in zip(found["nothing"], found[what], strict=True):
            torch.testing.assert_close(a, b)


def test_a_model_made_in_double_precision():
    expected, batch = model_and_batch("BertModel", 2, "left", position_embedding_type="sinusoidal")
    with default("dtype"):
        model = BertModel(expected.config).eval()
    model.load_state_dict(expected.double().state_dict())
    found = outputs(model, batch)
    assert model.dtype == found.pooler_output.dtype == torch.float64
    assert_same(found, outputs(expected, batch), batch, tolerance=1e-6)


def test_embeddings_in_place_of_ids():
    for padding in masks():
        model, batch = model_and_batch("BertModel", 5, padding)
        by_ids = outputs(model, batch).last_hidden_state
        embeds = model.get_input_embeddings()(batch.pop("input_ids"))
        by_embeds = outputs(model, batch, inputs_embeds=embeds).last_hidden_state
        assert torch.equal(by_ids, by_embeds)


def test_bare_model_without_pooler():
    model = BertModel(random_config(1), add_pooling_layer=False)
    assert model(torch.tensor([[1, 2]])).pooler_output is None
    assert not any("pooler" in name for name in model.state_dict())


def test_compiled_without_packing():
    """Under torch.compile the padded computation runs: a trace has no token counts."""
    model, batch = model_and_batch("BertModel", 5, num_hidden_layers=2)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_same(outputs(compiled, batch), outputs(model, batch), batch)
