"""What forward returns and how it is asked: tuples, chosen hidden states, chunks, checkpointing."""

import inspect
from contextlib import contextmanager, nullcontext

import pytest
import torch
from transformers.models.bert import modeling_bert as upstream

import hf_bert_impl
from hf_bert_impl import BertModel
from tests.model.cases import (
    HEADS,
    masks,
    random_batch,
    random_config,
    random_labels,
    random_model,
)


@pytest.mark.parametrize("head", HEADS)
def test_signature_and_output_are_upstreams(head):
    ours = inspect.signature(getattr(hf_bert_impl, head).forward).parameters
    theirs = inspect.signature(getattr(upstream, head).forward).parameters
    assert [p for p in ours if p in theirs] == list(theirs)
    config = random_config(1, head)
    model = random_model(head, config)
    theirs_model = getattr(upstream, head)(upstream.BertConfig.from_dict(config.to_dict()))
    batch = random_batch(head, config, masks()["right"])
    labels = random_labels(head, config, batch)
    a, b = model(**batch, **labels), theirs_model(**batch, **labels)
    assert list(a.keys()) == list(b.keys())
    assert [type(x) for x in a.values()] == [type(x) for x in b.values()]
    assert type(a).__name__ == type(b).__name__


@pytest.mark.parametrize("head", HEADS)
def test_return_dict_false_gives_the_same_as_a_tuple(head):
    config = random_config(2, head)
    model = random_model(head, config)
    batch = random_batch(head, config, masks()["right"])
    batch |= random_labels(head, config, batch)
    wanted = {"output_hidden_states": True, "output_attentions": True}
    with torch.no_grad():
        named = model(**batch, **wanted)
        plain = model(**batch, **wanted, return_dict=False)
        model.config.return_dict = False
        by_config = model(**batch, **wanted)
    for values in (plain, by_config):
        assert isinstance(values, tuple)
        assert len(values) == len(named)
        for value, name in zip(values, named, strict=True):
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, named[name])


@pytest.mark.parametrize("padding", ["right", "none"])
def test_hidden_states_by_number(padding):
    config = random_config(1, num_hidden_layers=4)
    model = random_model("BertModel", config)
    batch = random_batch("BertModel", config, masks()[padding])
    with torch.no_grad():
        everything = model(**batch, output_hidden_states=True).hidden_states
        for wanted, kept in (([0, 2], {0, 2}), ([-1], {4}), (3, {3}), ([9], set())):
            chosen = model(**batch, output_hidden_states=wanted).hidden_states
            assert len(chosen) == 5
            for number, states in enumerate(chosen):
                assert (states is not None) == (number in kept)
                if number in kept:
                    assert torch.equal(states, everything[number])


@pytest.mark.parametrize("padding", ["right", "none"])
@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_chunked_feed_forward(padding, chunk):
    """Any chunk size, not only a divisor of the length."""
    config = random_config(3)
    whole = random_model("BertModel", config)
    config.chunk_size_feed_forward = chunk
    chunked = random_model("BertModel", config)
    batch = random_batch("BertModel", config, masks()[padding])
    with torch.no_grad():
        difference = whole(**batch).last_hidden_state - chunked(**batch).last_hidden_state
    assert difference.abs().max() < 1e-6


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("padding", ["right", "left", "none"])
def test_gradient_checkpointing_changes_no_gradient(padding, reentrant):
    head = "BertForPreTraining"
    config = random_config(4, head)
    batch = random_batch(head, config, masks()[padding])
    batch |= random_labels(head, config, batch)
    gradients = []
    for checkpointing in (False, True):
        model = random_model(head, config).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            calls = []
            layer = model.bert.encoder.layer[0].attention
            layer.register_forward_hook(lambda *args, calls=calls: calls.append(1))
        torch.manual_seed(5)
        model(**batch).loss.backward()
        gradients.append({n: p.grad for n, p in model.named_parameters()})
    assert len(calls) == 2  # computed again on the way back
    for name, gradient in gradients[0].items():
        if gradient is None:  # the bias that the untied decoder does not read
            assert gradients[1][name] is None
        else:
            assert torch.allclose(gradient, gradients[1][name], atol=1e-7), name


@contextmanager
def default(what):
    """torch's default device or type is another meanwhile."""
    if what == "device":
        with torch.device("meta"):
            yield
        return
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("padding", ["left", "none"])
@pytest.mark.parametrize("head", HEADS)
def test_the_defaults_of_torch_are_not_asked(head, padding, training):
    config = random_config(2, head)
    model = random_model(head, config).train(training)
    batch = random_batch(head, config, masks()[padding])
    batch |= random_labels(head, config, batch)
    batch["head_mask"] = torch.ones(config.num_attention_heads)
    parameters = list(model.base_model.encoder.parameters())
    found = {}
    for what in ("nothing", "device", "dtype"):
        torch.manual_seed(3)
        with default(what) if what != "nothing" else nullcontext():
            output = model(**batch, output_hidden_states=True)
            loss = output.loss if "loss" in output else output.pooler_output.sum()
            found[what] = [
                loss,
                torch.autograd.grad(loss, parameters),
            ]
        found[what].append(output.hidden_states)
    for what in ("device", "dtype"):
        for a, b in zip(found["nothing"], found[what], strict=True):
            torch.testing.assert_close(a, b)


def test_a_model_made_in_double_precision():
    config = random_config(2, position_embedding_type="sinusoidal")
    ids = random_batch("BertModel", config, masks()["left"])
    expected = random_model("BertModel", config).double()
    with default("dtype"):
        model = BertModel(config).eval()
    model.load_state_dict(expected.state_dict())
    assert model.dtype == torch.float64
    with torch.no_grad():
        found, wanted = model(**ids).pooler_output, expected(**ids).pooler_output
    assert found.dtype == torch.float64
    assert (found - wanted).abs().max() < 1e-6


def test_embeddings_in_place_of_ids():
    config = random_config(5)
    model = random_model("BertModel", config)
    for mask in masks().values():
        batch = random_batch("BertModel", config, mask)
        with torch.no_grad():
            by_ids = model(**batch).last_hidden_state
            embeds = model.get_input_embeddings()(batch.pop("input_ids"))
            by_embeds = model(inputs_embeds=embeds, **batch).last_hidden_state
        assert torch.equal(by_ids, by_embeds)


def test_bare_model_without_pooler():
    model = hf_bert_impl.BertModel(random_config(1), add_pooling_layer=False)
    assert model(torch.tensor([[1, 2]])).pooler_output is None
    assert not any("pooler" in name for name in model.state_dict())


def test_compiled_without_packing():
    """Under torch.compile the padded computation runs: a trace has no token counts."""
    config = random_config(5, num_hidden_layers=2)
    model = random_model("BertModel", config)
    batch = random_batch("BertModel", config, masks()["right"])
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        a, b = model(**batch).last_hidden_state, compiled(**batch).last_hidden_state
    assert (a - b)[batch["attention_mask"].bool()].abs().max() < 1e-5
