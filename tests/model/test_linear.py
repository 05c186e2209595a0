"""Linear layers by oneDNN on live weights and on packed ones: never a weight of before.

`test_conformance.py` compares the models with transformers, `test_changes.py` after a change.
"""

import copy
import random

import pytest
import torch
from torch import nn

from hf_bert_impl.model import kernels, layers
from hf_bert_impl.model.linear import PRODUCTS, Product, computed_by, rounded_up
from hf_bert_impl.model.linear import linear as linear_here
from hf_bert_impl.model.preparing import packable, prepared_kernels
from hf_bert_impl.model.route import Inside
from tests.model.cases import (
    assert_same,
    model_and_batch,
    outputs,
    pickled,
    random_config,
    random_model,
    rows_through,
)

# --- live weights -------------------------------------------------------------------------------


def linear(layer, states):
    """The layer, inside another module, by the product that a call finds for it."""
    inside, root = Inside(), nn.Sequential(layer)
    inside.why_padded(root)
    with computed_by(inside.products(root)):
        assert PRODUCTS.get()
        return linear_here(layer, states)


@pytest.mark.parametrize("shape", [(2, 3, 13), (13,)])
@pytest.mark.parametrize("wanted", range(1, 8))
def test_only_the_gradients_that_are_wanted(shape, wanted, by_onednn):
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


def test_derivatives_of_gradients_and_many_at_once(by_onednn):
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


def test_feed_forward_in_slices(by_onednn, monkeypatch):
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


@pytest.mark.parametrize("dtype", [False, None, "bfloat16", "int8"])
def test_kernels_get_few_numbers_of_rows(dtype, by_onednn, needs_kernels, monkeypatch):
    """oneDNN keeps a primitive for each number of rows, so memory would grow with the texts."""
    model, _ = model_and_batch("BertForMaskedLM", 4)
    if dtype is not False:
        model.prepare_for_inference(dtype)
    kinds, seen, calls = [Product], set(), []

    def watch(kind, own):
        def call(self, states, *rest):
            calls.append(states)
            before = len(calls)
            output = own(self, states, *rest)
            if len(calls) == before:  # it called no other, so a kernel computed these rows
                seen.add(len(states))
            return output

        monkeypatch.setattr(kind, "__call__", call)

    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if "__call__" in vars(kind):
            watch(kind, kind.__call__)
    draw, tokens = random.Random(3), set()
    for _ in range(60):
        rows, length = draw.randint(1, 7), draw.randint(2, 13)
        ends = torch.tensor([length, *(draw.randint(1, length) for _ in range(rows - 1))])
        mask = (torch.arange(length) < ends[:, None]).long()
        outputs(model, {"input_ids": mask * draw.randint(1, 60), "attention_mask": mask})
        tokens.add(int(ends.sum()))
    assert seen == {rounded_up(size) for size in seen} and len(tokens) > 20
    assert len(seen) <= 24


# --- packed weights -----------------------------------------------------------------------------


def places(model):
    """The modules that can have packed weights, by path."""
    return {path: holder for holder, _, path in packable(model, "")}


def packed(model):
    """The paths at which weights are packed."""
    holders = places(model).items()
    found = {path: vars(holder).get("packed") for path, holder in holders}
    return {path for path, one in found.items() if one is not None and one.product is not None}


def test_what_is_packed_is_no_part_of_the_state(needs_kernels, tmp_path):
    """A changed layer alone is discarded, until the next call of `prepare_for_inference`."""
    model, batch = model_and_batch("BertForMaskedLM", 5)
    before = copy.deepcopy(model.state_dict())
    for one in (model.prepare_for_inference(), copy.deepcopy(model), pickled(model)):
        outputs(one, batch)
        assert packed(one) == set(places(model))
        assert list(one.state_dict()) == list(before)
        assert all(torch.equal(one.state_dict()[name], value) for name, value in before.items())
    model.save_pretrained(tmp_path)
    assert not packed(type(model).from_pretrained(tmp_path))
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.weight.mul_(1.5)
    outputs(model, batch)
    assert packed(model) == set(places(model)) - {"bert.encoder.layer.0.output.dense"}
    assert packed(model.prepare_for_inference()) == set(places(model))
    assert not packed(model.train())


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 0), ("int8", 0.1)])
def test_a_copy_packs_the_weights_of_its_first_call(dtype, tolerance):
    """int8 keeps the form that was best for the weights before."""
    if kernels.why_no_kernels(kernels.DTYPES[dtype]) is not None:
        pytest.skip("no kernels for it here")
    model, batch = model_and_batch("BertModel", 8)
    again = copy.deepcopy(model.prepare_for_inference(dtype))
    with torch.no_grad():
        for one in (model, again):
            one.encoder.layer[0].output.dense.weight.mul_(1.5)
    expected = outputs(model.prepare_for_inference(dtype), batch)[0]
    with torch.inference_mode():
        found = again(**batch)[0]
    assert torch.equal(outputs(again, batch)[0], found)  # outside of that mode too
    assert (found - expected).abs().max() <= tolerance
    assert prepared_kernels(again) == prepared_kernels(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_copy_in_another_precision(dtype, needs_kernels):
    """Its weights are not packed by kernels of the precision before, which few CPUs have."""
    model, batch = model_and_batch("BertForMaskedLM", 8)
    again = copy.deepcopy(model.prepare_for_inference("float32")).to(dtype)
    expected = outputs(copy.deepcopy(model).train().eval().to(dtype), batch)[0]
    assert torch.equal(outputs(again, batch)[0], expected)
    assert not packed(again)


def test_a_copy_on_a_machine_without_the_kernels(needs_kernels, monkeypatch):
    model, batch = model_and_batch("BertModel", 9)
    expected = outputs(model, batch)
    model.prepare_for_inference("int8")
    here = kernels.why_no_kernels
    monkeypatch.setattr(
        kernels,
        "why_no_kernels",
        lambda dtype, *rest: "none here" if dtype == torch.int8 else here(dtype, *rest),
    )
    again = copy.deepcopy(model)
    found = outputs(again, batch)
    assert all(torch.allclose(found[i], expected[i], atol=1e-5) for i in (0, 1))
    assert packed(again) == {"pooler.dense"}


def test_other_parameters_for_one_call(needs_kernels):
    model, batch = model_and_batch("BertModel", 5)
    other = random_model("BertModel", model.config, seed=3)
    model.prepare_for_inference()
    expected, everything = outputs(model, batch)[0], packed(model)
    with torch.no_grad():
        swapped = torch.func.functional_call(model, dict(other.named_parameters()), (), batch)
    assert_same(swapped, outputs(other, batch), batch)
    assert packed(model) == everything and torch.equal(outputs(model, batch)[0], expected)


def test_a_layer_that_is_not_packed_is_said(needs_kernels, caplog):
    model, _ = model_and_batch("BertModel", 18, num_hidden_layers=3)
    model.encoder.layer[1].output.dense.register_forward_hook(lambda *_: None)
    model.prepare_for_inference()
    assert packed(model) and "output.dense has a hook" in caplog.text
    with torch.inference_mode():
        model, batch = model_and_batch("BertModel", 3)
        model.prepare_for_inference()
        assert "where torch counts no changes of a weight" in caplog.text
        assert not packed(model)
        outputs(model, batch)


def test_forward_mode_derivatives(needs_kernels):
    model = random_model("BertForMaskedLM", random_config(23, "BertForMaskedLM"))
    model.set_attn_implementation("eager")  # torch's fused kernel has none
    states = torch.randn(2, 5, model.config.hidden_size)
    direction = torch.randn_like(states)
    with torch.no_grad():
        expected, found = (
            torch.func.jvp(lambda x, one=one: one(inputs_embeds=x)[0], (states,), (direction,))[1]
            for one in (copy.deepcopy(model), model.prepare_for_inference())
        )
    assert expected.abs().max() > 1e-2
    assert (found - expected).abs().max() < 1e-5


def test_a_model_that_torch_has_quantised(needs_kernels):
    model, batch = model_and_batch("BertModel", 6)
    with pytest.warns(DeprecationWarning):
        quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    expected, exact = outputs(quantised, batch), outputs(model, batch)[1]
    assert 0 < (expected[1] - exact).abs().mean() < 0.1 * exact.abs().mean()
    with pytest.raises(ValueError, match=r"query is a torch\.ao\.\S+, whose weights are quantised"):
        quantised.prepare_for_inference("bfloat16")
    assert_same(outputs(quantised, batch), expected, batch)
