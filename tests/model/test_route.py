"""Hooks and modules inside the model get the same tensors as in transformers."""

import pytest
import torch
from torch import nn

from hf_bert_impl.model import layers
from hf_bert_impl.parity import reference_model
from tests.model.cases import (
    HEADS,
    assert_same,
    assert_same_as_upstream,
    largest,
    model_and_batch,
    outputs,
)


def leaves_padding_out(model, batch):
    """Whether padding is not computed: its states are zeros."""
    return not outputs(model, batch)[0][batch["attention_mask"] == 0].any()


def tensors(values):
    """The floating-point tensors among (nested) values."""
    if isinstance(values, torch.Tensor):
        return [values] if values.is_floating_point() else []
    if isinstance(values, dict):
        values = list(values.values())
    return [t for v in values for t in tensors(v)] if isinstance(values, tuple | list) else []


def described(value):
    return tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__


def watch(model):
    """Records every call of every module below the model: arguments, tensors that come out."""
    seen = {}

    def forward_hook(module, args, kwargs, output, name):
        given = [*map(described, args)], {k: described(v) for k, v in kwargs.items()}
        seen.setdefault(name, []).append((given, [t.detach().clone() for t in tensors(output)]))

    for name, module in model.named_modules():
        if name and not isinstance(module, nn.ModuleList):
            module.register_forward_hook(
                lambda *args, name=name: forward_hook(*args, name=name), with_kwargs=True
            )
    return seen


def assert_same_calls(found, expected):
    assert found.keys() == expected.keys()
    for name, calls in expected.items():
        assert len(found[name]) == len(calls), name
        for (given, values), (given_there, values_there) in zip(found[name], calls, strict=True):
            assert given == given_there, name
            assert [*map(described, values)] == [*map(described, values_there)], name
            for value, there in zip(values, values_there, strict=True):
                assert largest(value - there) <= 2e-5 * there.abs().max().clamp(min=1), name


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize(("backend", "padding"), [("sdpa", "holes"), ("eager", "none")])
@pytest.mark.parametrize("head", HEADS)
def test_forward_hooks(head, backend, padding, prepared):
    model, batch = model_and_batch(head, 2, padding, attn_implementation=backend)
    reference = reference_model(model)
    reference.set_attn_implementation(backend)
    if prepared:
        model.prepare_for_inference()
    seen, expected = watch(model), watch(reference)
    outputs(model, batch)
    outputs(reference, batch)
    assert_same_calls(seen, expected)


HOOKS = {
    "forward": lambda m, do: m.register_forward_hook(do),
    "forward pre": lambda m, do: m.register_forward_pre_hook(do),
    "full backward": lambda m, do: m.register_full_backward_hook(do),
    "backward pre": lambda m, do: m.register_full_backward_pre_hook(do),
    "all forward": lambda m, do: nn.modules.module.register_module_forward_hook(do),
    "all forward pre": lambda m, do: nn.modules.module.register_module_forward_pre_hook(do),
    "all backward": lambda m, do: nn.modules.module.register_module_full_backward_hook(do),
}


@pytest.mark.parametrize("place", ["", "embeddings.word_embeddings"])
@pytest.mark.parametrize("kind", HOOKS)
def test_one_hook_is_enough(kind, place):
    """After its removal, padding is skipped again."""
    model, batch = model_and_batch("BertModel", 2, "right", num_hidden_layers=3)
    assert leaves_padding_out(model, batch)
    handle = HOOKS[kind](model.get_submodule(place), lambda *_: None)
    try:
        expected = outputs(reference_model(model), batch)
        assert_same(
            outputs(model, batch), expected, torch.ones_like(batch["attention_mask"]).bool()
        )
    finally:
        handle.remove()
    assert leaves_padding_out(model, batch)


class Wrapped(nn.Module):
    """Has none of the inner module's attributes: no weight, no num_embeddings."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, states):
        return self.inner(states)


def wrap_all(module, kinds):
    for name, child in list(module.named_children()):
        if isinstance(child, kinds):
            setattr(module, name, Wrapped(child))
        else:
            wrap_all(child, kinds)


@pytest.mark.parametrize("kinds", [nn.Linear, nn.Embedding, nn.LayerNorm], ids=lambda k: k.__name__)
@pytest.mark.parametrize("head", HEADS)
def test_wrappers_without_a_weight(head, kinds):
    model, batch = model_and_batch(head, 1, "left")
    reference = reference_model(model)
    wrap_all(model, kinds)
    assert_same_as_upstream(model, batch, reference=reference)
    model.prepare_for_inference()
    assert_same_as_upstream(model, batch, reference=reference)


def become(module, kind):
    module.__class__ = kind


def test_a_subclass_that_declares_it():
    class Mine(layers.BertIntermediate):
        def forward(self, states):
            return super().forward(states)

    model, batch = model_and_batch("BertModel", 2)
    become(model.encoder.layer[0].intermediate, Mine)
    assert not leaves_padding_out(model, batch)
    Mine.takes_packed = (Mine.forward,)
    assert leaves_padding_out(model, batch)
    become(model.encoder.layer[0], type("Other", (layers.BertLayer,), {}))  # replaces no method
    assert leaves_padding_out(model, batch)


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_inner_modules_called_by_a_wrapper(backend):
    model, batch = model_and_batch("BertForPreTraining", 2, "holes", attn_implementation=backend)
    reference = reference_model(model)
    reference.set_attn_implementation(backend)
    mask = batch["attention_mask"][:, None, None].bool()
    added = torch.zeros(5, 1, 13, 13).masked_fill(~mask, torch.finfo(torch.float32).min)
    ids = batch["input_ids"]
    found = []
    for one in (model, reference):
        bert, layer = one.bert, one.bert.encoder.layer[0]
        with torch.no_grad():
            states = bert.embeddings(ids, batch["token_type_ids"])
            encoded = bert.encoder(states, attention_mask=added)
            assert encoded[0] is encoded.last_hidden_state
            inner = layer.attention.self(states, added)[0]
            attended = layer.attention(states, added)[0]
            found.append(
                [
                    *(states, bert.embeddings(inputs_embeds=states)),
                    bert.embeddings(ids[:, :3], None, None, None, 4),
                    *(encoded[0], inner, attended, layer(states, added)),
                    layer.output(layer.intermediate(attended), attended),
                    layer.attention.output(attended, states),
                    *one.cls(encoded[0], bert.pooler(encoded[0])),
                ]
            )
    assert [*map(described, found[0])] == [*map(described, found[1])]
    for ours, theirs in zip(*found, strict=True):
        assert largest(ours - theirs) < 2e-5


@pytest.mark.parametrize("owner", [nn.Module, layers.BertIntermediate])
def test_a_call_that_is_patched(owner, monkeypatch):
    """Profilers patch the calls of all modules."""
    model, batch = model_and_batch("BertModel", 2, "right", num_hidden_layers=2)
    expected, called, call = outputs(model, batch), [], owner.__call__
    monkeypatch.setattr(
        owner, "__call__", lambda self, *a, **k: called.append(type(self)) or call(self, *a, **k)
    )
    found = outputs(model, batch)
    assert layers.BertIntermediate in called
    assert_same(found, expected, batch["attention_mask"].bool())


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("path", ["embeddings", "encoder.layer.1.attention.output"])
def test_one_dropout_in_train_mode(path, prepared):
    """Monte Carlo dropout: eval mode, but for the dropout modules."""
    model, batch = model_and_batch("BertModel", 2, "right", num_hidden_layers=2)
    if prepared:
        model.prepare_for_inference()
    before = outputs(model, batch)[0]
    dropout = model.get_submodule(f"{path}.dropout").train()
    dropout.p = 0.5
    assert largest(outputs(model, batch)[0] - before) > 0.01
    dropout.eval()
    assert torch.equal(outputs(model, batch)[0], before)
