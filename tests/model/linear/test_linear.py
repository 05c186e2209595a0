"""Products by oneDNN on unpacked weights: same numbers, and only in calls that are plain."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from hf_bert_impl.model import layers
from hf_bert_impl.model import linear as module
from hf_bert_impl.model.linear import PRODUCTS, computed_by
from hf_bert_impl.model.linear import linear as linear_here
from hf_bert_impl.model.route import Inside
from tests.model.cases import (
    model_and_batch,
    outputs,
    random_batch,
    random_config,
    random_model,
    rows_through,
)

pytestmark = [pytest.mark.usefixtures("by_onednn")]


@contextmanager
def counted() -> Iterator[list[str]]:
    """The names of oneDNN's linear operators that run inside."""
    found: list[str] = []
    with torch.profiler.profile() as profile:
        yield found
    found += [event.name for event in profile.events() if "_linear_pointwise" in event.name]


def products(layer):
    """What computes a layer that oneDNN may compute; the layer is in another module."""
    inside, root = Inside(), nn.Sequential(layer)
    inside.why_padded(root)
    return inside.products(root)


def linear(layer, states):
    with computed_by(products(layer)):
        assert PRODUCTS.get()
        return linear_here(layer, states)


@pytest.fixture
def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(13, 7).eval().requires_grad_(False)


@pytest.mark.parametrize("shape", [(2, 3, 13), (13,)])
@pytest.mark.parametrize("wanted", range(1, 8))
def test_only_the_gradients_that_are_wanted(shape, wanted):
    torch.manual_seed(wanted)
    layer = nn.Linear(13, 7)
    tensors = (torch.randn(shape), layer.weight, layer.bias)
    for bit, tensor in enumerate(tensors):
        tensor.requires_grad_(bool(wanted & 1 << bit))
    needed = [tensor for tensor in tensors if tensor.requires_grad]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        found = linear(layer, tensors[0])
    assert "_Product" in str(found.grad_fn.name()) or len(shape) > 2 or found.ndim == 1
    # Frozen weights keep no states alive.
    assert len(kept) == bool(wanted & 1) + bool(wanted & 2)
    found += 1  # as above, where autograd could forbid it
    above = torch.randn(found.shape)
    expected = torch.autograd.grad(layer(tensors[0]), needed, above)
    for a, b in zip(torch.autograd.grad(found, needed, above), expected, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_derivatives_of_gradients_and_many_at_once():
    torch.manual_seed(0)
    layer, states = nn.Linear(13, 7), torch.randn(5, 13, requires_grad=True)

    def penalty(call):
        (slope,) = torch.autograd.grad((call(states) ** 2).sum(), states, create_graph=True)
        return torch.autograd.grad((slope**2).sum(), [states, layer.weight])

    def jacobian(call):
        directions = torch.eye(35).view(35, 5, 7)
        return torch.autograd.grad(
            call(states), [states, layer.weight, layer.bias], directions, is_grads_batched=True
        )

    for derivative in (penalty, jacobian):
        expected = derivative(layer)
        for a, b in zip(derivative(lambda x: linear(layer, x)), expected, strict=True):
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("head", ["BertModel", "BertForMaskedLM"])
def test_a_document_leaves_the_others_bit_by_bit(head, monkeypatch):
    """At a real width, with the numbers at which oneDNN is taken, too."""
    monkeypatch.setattr(module, "MANY_WEIGHTS", 1 << 19)
    sizes = dict(hidden_size=320, num_attention_heads=5, intermediate_size=1300)
    config = random_config(7, head, **sizes, num_hidden_layers=2, max_position_embeddings=64)
    model = random_model(head, config, std=0.05)
    lengths = torch.tensor([41, 7, 23, 1, 64])
    mask = (torch.arange(64) < lengths[:, None]).long()
    batch = random_batch(head, config, mask, length=64)
    with counted() as products:
        before = outputs(model, batch)[0]
    assert products
    for row, length in enumerate(lengths.tolist()):
        ids = batch["input_ids"].clone()
        ids[row] = (ids[row] + 5) % config.vocab_size * mask[row]
        after = outputs(model, batch | {"input_ids": ids})[0]
        others = torch.arange(len(lengths)) != row
        assert torch.equal(after[others], before[others])
        assert not torch.equal(after[row, :length], before[row, :length])
        alone = {name: value[row : row + 1, :length] for name, value in batch.items()}
        assert (outputs(model, alone)[0] - before[row, :length]).abs().max() < 1e-5


def test_feed_forward_in_slices(monkeypatch):
    """Large batches take less memory; who watches a layer sees all of its tokens at once."""
    monkeypatch.setattr(layers, "SLICE_TOKENS", 7)
    model, batch = model_and_batch("BertModel", 2, hidden_act="gelu", num_hidden_layers=2)
    rows = rows_through(model.encoder.layer[0].output)
    tokens = int(batch["attention_mask"].sum())
    bytes_inside = tokens * model.config.intermediate_size * 4
    monkeypatch.setattr(layers, "LARGEST_BLOCK", bytes_inside)
    whole = outputs(model, batch)[0]
    assert rows == [tokens]
    rows.clear()
    monkeypatch.setattr(layers, "LARGEST_BLOCK", bytes_inside - 1)
    found = outputs(model, batch)[0]
    assert (max(rows), sum(rows)) == (7, tokens)
    assert (found - whole).abs().max() < 1e-5
    rows.clear()
    model.encoder.layer[0].intermediate.register_forward_hook(lambda *_: None)
    outputs(model, batch)
    assert rows == [batch["input_ids"].numel()]


def test_other_calls_are_not_taken(layer):
    states = torch.randn(5, 13)
    assert linear(layer, states.double().float()).shape == (5, 7) and products(layer.train())
    with computed_by(products(layer)), pytest.raises(RuntimeError, match=r"dtype|type"):
        linear_here(layer, states.double())  # as torch's own layer
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not products(layer)
    with torch.backends.mkldnn.flags(enabled=False):
        assert not products(layer)
