"""Products by oneDNN on the weights as they are: same numbers, and only where nobody watches."""

import copy
import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from hf_bert_impl.model import cpu_kernels, layers
from tests.model.cases import (
    HEADS,
    NO_DROPOUT,
    assert_same,
    assert_same_gradients,
    gradients,
    masks,
    model_and_batch,
    outputs,
    random_batch,
    random_config,
    random_model,
)
from tests.model.codertimo.test_codertimo import codertimo
from tests.model.prepared.cases import WEIGHT_CHANGES

pytestmark = [pytest.mark.usefixtures("by_onednn")]


@contextmanager
def usual():
    """Inside, products are those of `nn.functional.linear`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_kernels, "most_rows_by_onednn", lambda: 0)
        yield


@contextmanager
def counted() -> Iterator[list[str]]:
    """The names of oneDNN's linear operators that run inside."""
    found: list[str] = []
    with torch.profiler.profile() as profile:
        yield found
    found += [event.name for event in profile.events() if "_linear_pointwise" in event.name]


def both_ways(model, batch, where=None, **options) -> int:
    """Holds outputs by oneDNN to the usual ones; gives how many products it made."""
    with usual():
        expected = outputs(model, batch, **options)
    with counted() as products:
        found = outputs(model, batch, **options)
    assert_same(found, expected, batch if where is None else where)
    return len(products)


def linear_layers(model) -> int:
    return sum(type(module) is nn.Linear for module in model.modules())


@pytest.mark.parametrize("padding_free", [True, False])
@pytest.mark.parametrize(
    ("head", "activation"),
    [(head, "gelu") for head in HEADS]
    + [("BertForMaskedLM", "gelu_new"), ("BertForMaskedLM", "relu")],
)
def test_the_same_numbers(head, padding_free, activation):
    for padding in masks():
        fields = dict(hidden_act=activation, padding_free=padding_free)
        model, batch = model_and_batch(head, 2, padding, **fields)
        products = both_ways(model, batch, output_hidden_states=True)
        # Classifiers on top are small and called as they are.
        assert products >= 6 * model.config.num_hidden_layers


def test_codertimo():
    model, batch, real = codertimo()
    assert both_ways(model, batch, real) == linear_layers(model)


def test_cross_attention():
    model, batch = model_and_batch("BertLMHeadModel", 3, add_cross_attention=True)
    batch["encoder_hidden_states"] = torch.randn(5, 7, model.config.hidden_size)
    assert both_ways(model, batch) == linear_layers(model)


def test_gelu_is_exact():
    """In the product it errs no more than torch's own does after it."""
    layer = nn.Linear(1, 1).eval().requires_grad_(False)
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)
    states = torch.linspace(-12, 12, 20001)[:, None]
    exact = nn.functional.gelu(states.double())
    with counted() as products:
        found = cpu_kernels.linear(layer, states, ACT2FN["gelu"])
    assert len(products) == 1
    own = (nn.functional.gelu(states) - exact).abs().max()
    assert (found - exact).abs().max() <= max(own, 5e-7)


@pytest.mark.parametrize(
    "activation",
    [
        nn.functional.gelu,
        nn.GELU(),
        ACT2FN["gelu_10"],
        ACT2FN["gelu_python"],
        ACT2FN["relu"],
        torch.tanh,
    ],
)
def test_other_activations_follow(activation):
    layer = nn.Linear(13, 7).eval().requires_grad_(False)
    states = torch.randn(11, 13, generator=torch.Generator().manual_seed(0)) * 9
    expected = activation(nn.functional.linear(states, layer.weight, layer.bias))
    assert (cpu_kernels.linear(layer, states, activation) - expected).abs().max() < 1e-5


def test_an_observed_activation_is_called():
    layer = nn.Linear(13, 7).eval().requires_grad_(False)
    states = torch.randn(11, 13)
    seen = []
    hooked, other = ACT2FN["gelu"], ACT2FN["gelu"]
    hooked.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    other.act = lambda projected: seen.append(projected) or projected
    for activation in (hooked, other):
        cpu_kernels.linear(layer, states, activation)
        assert torch.allclose(seen.pop(), layer(states), atol=1e-5)


SHAPES = {
    "packed": lambda x: x.flatten(0, 1),
    "batched": lambda x: x,
    "first tokens": lambda x: x[:, 0],
    "transposed": lambda x: x.transpose(0, 1),
    "every second": lambda x: x[:, ::2],
    "one": lambda x: x[0, 0],
    "none": lambda x: x[:0],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_and_strides(shape):
    layer = nn.Linear(13, 7).eval().requires_grad_(False)
    states = SHAPES[shape](torch.randn(5, 6, 13, generator=torch.Generator().manual_seed(0)))
    expected = nn.functional.linear(states, layer.weight, layer.bias)
    found = cpu_kernels.linear(layer, states)
    assert found.shape == expected.shape
    assert found.is_contiguous()
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_wrong_width_is_the_layers_own_error():
    layer = nn.Linear(13, 7).eval().requires_grad_(False)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"):
        cpu_kernels.linear(layer, torch.randn(5, 12))


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("padding_free", [True, False])
@pytest.mark.parametrize("head", ["BertForPreTraining", "BertForTokenClassification"])
def test_gradients_are_those_of_the_usual_way(head, padding_free, checkpointing):
    fields = NO_DROPOUT | dict(padding_free=padding_free, num_hidden_layers=3)
    model, batch = model_and_batch(head, 6, labels=True, **fields)
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    with usual():
        expected = gradients(model, model(**batch).loss)
    with counted() as products:
        found = gradients(model, model(**batch).loss)
    # A product forward and two backward, in each of the six layers of a block.
    assert len(products) >= 18 * model.config.num_hidden_layers
    assert_same_gradients(found, expected)
    assert all(gradient.is_contiguous() for gradient in found.values())


@pytest.mark.parametrize("shape", [(5, 13), (2, 3, 13), (13,)])
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
        found = cpu_kernels.linear(layer, tensors[0])
    # Frozen weights keep no states alive.
    assert len(kept) == bool(wanted & 1) + bool(wanted & 2)
    above = torch.randn(found.shape)
    expected = torch.autograd.grad(layer(tensors[0]), needed, above)
    for a, b in zip(torch.autograd.grad(found, needed, above), expected, strict=True):
        assert a.shape == b.shape
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
        for a, b in zip(derivative(lambda x: cpu_kernels.linear(layer, x)), expected, strict=True):
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-4)


def test_a_weight_changed_before_its_gradient_is_an_error():
    layer, states = nn.Linear(13, 7), torch.randn(5, 13, requires_grad=True)
    loss = cpu_kernels.linear(layer, states).sum()
    with torch.no_grad():
        layer.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("change", WEIGHT_CHANGES)
def test_weights_are_never_stale(change):
    model, batch = model_and_batch("BertModel", 6)
    before = outputs(model, batch)[0]
    for parameter in model.encoder.layer[0].attention.self.query.parameters():
        WEIGHT_CHANGES[change](parameter)
    found = outputs(model, batch)[0]
    assert not torch.equal(found, before)
    assert torch.equal(found, outputs(copy.deepcopy(model), batch)[0])


@pytest.mark.parametrize("head", ["BertModel", "BertForMaskedLM"])
def test_a_document_leaves_the_others_bit_by_bit(head):
    """At a real width, with the numbers at which oneDNN is taken, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_kernels, "MANY_WEIGHTS", 1 << 19)
        sizes = dict(hidden_size=320, num_attention_heads=5, intermediate_size=1300)
        config = random_config(7, head, **sizes, num_hidden_layers=2, max_position_embeddings=64)
        model = random_model(head, config, std=0.05)
        lengths = torch.tensor([41, 7, 7, 23, 1, 64, 13])
        mask = (torch.arange(64) < lengths[:, None]).long()
        batch = random_batch(head, config, mask, length=64)
        with counted() as products:
            before = outputs(model, batch)[0]
        assert products
        for row in range(len(lengths)):
            changed = dict(batch, input_ids=batch["input_ids"].clone())
            others = (changed["input_ids"][row] + 5) % config.vocab_size
            changed["input_ids"][row] = others * mask[row]
            after = outputs(model, changed)[0]
            others = torch.arange(len(lengths)) != row
            assert torch.equal(after[others], before[others])
            length = int(lengths[row])
            assert not torch.equal(after[row, :length], before[row, :length])
            alone = {name: value[row : row + 1, :length] for name, value in batch.items()}
            assert (outputs(model, alone)[0] - before[row, :length]).abs().max() < 1e-5


@pytest.fixture
def rows(monkeypatch) -> list[int]:
    """Rows of each call of a feed-forward layer, and slices of seven."""
    found: list[int] = []
    feed_forward = layers.BertLayer.feed_forward_chunk

    @functools.wraps(feed_forward)
    def recorded(self, states):
        found.append(states.shape[:-1].numel())
        return feed_forward(self, states)

    monkeypatch.setattr(layers, "SLICE_TOKENS", 7)
    monkeypatch.setattr(layers.BertLayer, "feed_forward_chunk", recorded)
    monkeypatch.setattr(layers.BertLayer, "takes_packed", (layers.BertLayer.forward, recorded))
    return found


@pytest.mark.parametrize("padding_free", [True, False])
def test_feed_forward_in_slices(monkeypatch, rows, padding_free):
    fields = dict(padding_free=padding_free, hidden_act="gelu", num_hidden_layers=2)
    model, batch = model_and_batch("BertModel", 2, **fields)
    tokens = int(batch["attention_mask"].sum()) if padding_free else batch["input_ids"].numel()
    bytes_inside = tokens * model.config.intermediate_size * 4
    monkeypatch.setattr(layers, "LARGEST_BLOCK", bytes_inside)
    whole = outputs(model, batch)[0]
    assert rows == [tokens] * 2
    rows.clear()
    monkeypatch.setattr(layers, "LARGEST_BLOCK", bytes_inside - 1)
    found = outputs(model, batch)[0]
    assert max(rows) == 7
    assert sum(rows) == tokens * 2
    assert (found - whole).abs().max() < 1e-5


@pytest.mark.parametrize("part", ["intermediate", "intermediate.dense", "output", "output.dropout"])
def test_who_watches_sees_all_tokens_at_once(monkeypatch, rows, part):
    model, batch = model_and_batch("BertModel", 2, num_hidden_layers=2)
    positions = batch["input_ids"].numel()  # a hook sees padding too
    monkeypatch.setattr(layers, "LARGEST_BLOCK", 0)
    seen: list[int] = []
    model.encoder.layer[0].get_submodule(part).register_forward_hook(
        lambda module, inputs, output: seen.append(output.shape[:-1].numel())
    )
    outputs(model, batch)
    assert seen == [positions]
    assert rows[0] == positions
    assert max(rows[1:]) == 7  # the other layer
    rows.clear()
    model(**batch)  # with gradients
    assert rows == [positions] * 2


@pytest.mark.parametrize(
    ("capability", "amd", "mkl", "most_rows"),
    [
        ("AVX512", True, True, math.inf),
        ("AVX512", False, True, 0),
        ("AVX2", True, True, cpu_kernels.FEW_ROWS),
        ("AVX2", False, True, 0),
        ("DEFAULT", True, True, 0),
        ("AVX512", True, False, 0),
    ],
)
def test_only_where_it_pays(monkeypatch, capability, amd, mkl, most_rows):
    """On a processor of another maker, or without vectors, or without MKL, nothing changes."""
    monkeypatch.undo()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: mkl)
    monkeypatch.setattr(cpu_kernels, "_is_amd", lambda: amd)
    assert cpu_kernels.most_rows_by_onednn.__wrapped__() == most_rows


def test_few_rows_alone(monkeypatch):
    """Where oneDNN is quicker for few rows only, the others are torch's own."""
    monkeypatch.setattr(cpu_kernels, "most_rows_by_onednn", lambda: 6)
    layer = nn.Linear(768, 770)
    for shape, is_few in (((6, 768), True), ((2, 3, 768), True), ((7, 768), False)):
        assert cpu_kernels.takes_onednn(layer, torch.randn(shape)) is is_few
