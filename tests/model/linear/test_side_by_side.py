"""Query, key and value side by side on an accelerator, computed by the CPU here."""

import copy

import pytest
import torch
from torch import nn

from hf_bert_impl import BertModel
from hf_bert_impl.model.linear import SideBySide
from tests.model.cases import LOSS_HEADS, NO_DROPOUT, model_and_batch, outputs, pickled


@pytest.fixture
def prepared(monkeypatch):
    """A model that was prepared as if its weights were on a GPU, its batch and stock outputs."""
    model, batch = model_and_batch("BertModel", 5)
    expected = outputs(model, batch)
    with monkeypatch.context() as patched:
        patched.setattr(BertModel, "device", torch.device("cuda", 0))
        model.prepare_for_inference()
    return model, batch, expected


def attention(model):
    return model.encoder.layer[0].attention.self


def products(model, batch, monkeypatch):
    """Calls of the joined product, one per layer, and the outputs."""
    calls, compute = [], SideBySide.compute

    def counted(self, *arguments):
        found = compute(self, *arguments)
        calls.append(found is not None)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(SideBySide, "compute", counted)
        found = outputs(model, batch)
    return sum(calls), found


def test_one_product_with_the_same_numbers(prepared, monkeypatch):
    model, batch, expected = prepared
    layers = model.config.num_hidden_layers
    for each in (model, copy.deepcopy(model), pickled(model)):
        count, found = products(each, batch, monkeypatch)
        assert count == layers
        assert (found[0] - expected[0]).abs().max() < 1e-5 * expected[0].abs().max()


@pytest.mark.parametrize("dtype", ["int8", "float16-weights"])
def test_precisions_of_the_cpu_are_told(dtype, monkeypatch, caplog):
    model, _ = model_and_batch("BertModel", 5)
    monkeypatch.setattr(BertModel, "device", torch.device("cuda", 0))
    model.prepare_for_inference(dtype)
    assert f"dtype={dtype!r} has no kernels on cuda; it computes in float32" in caplog.text


@pytest.mark.parametrize("padding", ["left", "holes", "none"])
def test_every_padding(padding, monkeypatch):
    model, batch = model_and_batch("BertModel", padding=padding)
    expected = outputs(model, batch)
    for layer in model.encoder.layer:
        layer.attention.self.packed = SideBySide()
    count, found = products(model, batch, monkeypatch)
    assert count == model.config.num_hidden_layers
    assert (found[0] - expected[0]).abs().max() < 1e-5 * expected[0].abs().max()


def written(model):
    attention(model).value.weight.data.mul_(-1)


def loaded(model):
    model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})


def assigned(model):
    state = {name: value * 2 for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)


def replaced(model):
    key = attention(model).key
    attention(model).key = nn.Linear(key.in_features, key.out_features)


def other_bias(model):
    key = attention(model).key
    key.bias = nn.Parameter(torch.ones_like(key.bias))


def shared(model):
    for layer in model.encoder.layer:
        own = layer.attention.self
        own.key.weight = own.query.weight
        own.packed = SideBySide()
    inputs = {"input_ids": torch.tensor([[2, 5, 7]])}
    outputs(model, inputs)
    with torch.no_grad():
        attention(model).query.weight.mul_(2)


def hooked(model):
    attention(model).query.register_forward_hook(lambda module, given, output: output * 2)


def converted(model):
    model.double().float()


@pytest.mark.parametrize(
    "change", [written, loaded, assigned, replaced, other_bias, shared, hooked, converted]
)
def test_every_change_is_seen(prepared, change):
    model, batch, _ = prepared
    outputs(model, batch)
    torch.manual_seed(0)
    change(model)
    plain = copy.deepcopy(model)
    for module in plain.modules():
        vars(module).pop("packed", None)
    for layer in plain.encoder.layer:
        layer.attention.self.packed = None
    found, expected = outputs(model, batch)[0], outputs(plain, batch)[0]
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


def test_saving_writes_every_weight(prepared, tmp_path):
    from transformers import BertModel as Stock

    model, batch, _ = prepared
    outputs(model, batch)
    model.save_pretrained(tmp_path)
    stock = Stock.from_pretrained(tmp_path).eval()
    state = model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in stock.state_dict().items())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_training_goes_on(mode, monkeypatch):
    model, batch = model_and_batch(LOSS_HEADS[0], labels=True, **NO_DROPOUT)
    twin = copy.deepcopy(model)
    with monkeypatch.context() as patched:
        patched.setattr(type(model), "device", torch.device("cuda", 0))
        model.prepare_for_inference()
    with mode():
        model(**batch)
    for each in (model, twin):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        each.train()(**batch).loss.backward()
        optimizer.step()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_weights_of_inference_mode_are_left_alone():
    with torch.inference_mode():
        model, batch = model_and_batch("BertModel", 5)
        expected = outputs(model, batch)
        for layer in model.encoder.layer:
            layer.attention.self.packed = SideBySide()
        found = outputs(model, batch)
    assert torch.equal(found[0], expected[0])
