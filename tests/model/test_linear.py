"""Linear layers by oneDNN on live weights and on packed ones: never a weight of before. Int8, and
which kernels are chosen on this machine.

`test_conformance.py` compares the models with transformers, `test_changes.py` after a change.
"""

import copy
import dataclasses
import random
from unittest import mock

import pytest
import torch
from torch import nn

from hf_bert_impl import BertModel, TextEncoder
from hf_bert_impl.model import kernels, layers, linear
from hf_bert_impl.model.int8 import try_forms
from hf_bert_impl.model.preparing import packable, prepared_kernels
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


def derivatives(model, batch, wanted):
    """Gradients, the gradients of their squares, many at once; and how many numbers were kept."""
    kept = []
    hooks = (lambda tensor: kept.append(tensor.numel()) or tensor, lambda tensor: tensor)
    with torch.autograd.graph.saved_tensors_hooks(*hooks):
        states = model(**batch).last_hidden_state
    above = torch.randn(3, *states.shape, generator=torch.Generator().manual_seed(1))
    many = torch.autograd.grad(states, wanted, above, is_grads_batched=True, retain_graph=True)
    first = torch.autograd.grad(states, wanted, above[0], create_graph=True)
    squares = sum(gradient.square().sum() for gradient in first)
    return [*first, *torch.autograd.grad(squares, wanted, materialize_grads=True), *many], sum(kept)


@pytest.mark.parametrize("frozen", ["nothing", "weight", "bias", "layer"])
def test_derivatives_of_what_is_not_frozen(frozen, by_onednn, monkeypatch):
    """They are torch's, and frozen weights keep no more states alive than there."""
    multiply = mock.Mock(wraps=linear.multiply)
    monkeypatch.setattr(linear, "multiply", multiply)
    model, batch = model_and_batch("BertModel", 4, attn_implementation="eager")
    embeddings = model.get_input_embeddings()(batch.pop("input_ids")).detach()
    batch["inputs_embeds"] = embeddings.requires_grad_()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(frozen not in name)
    inside = model.encoder.parameters()
    wanted = [embeddings, *(parameter for parameter in inside if parameter.requires_grad)]
    found, kept = derivatives(model, batch, wanted)
    assert multiply.called
    with torch.backends.mkldnn.flags(enabled=False):
        expected, kept_there = derivatives(model, batch, wanted)
    assert kept == kept_there
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


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
def test_kernels_get_few_numbers_of_rows(dtype, by_onednn, needs_kernels):
    """oneDNN keeps a primitive for each number of rows, so memory would grow with the texts."""
    model, _ = model_and_batch("BertForMaskedLM", 4, num_hidden_layers=1)
    if dtype is not False:
        model.prepare_for_inference(dtype)
    draw, tokens = random.Random(3), set()
    with torch.profiler.profile(record_shapes=True) as profile:
        for _ in range(30):
            rows, length = draw.randint(1, 7), draw.randint(2, 13)
            ends = torch.tensor([length, *(draw.randint(1, length) for _ in range(rows - 1))])
            mask = (torch.arange(length) < ends[:, None]).long()
            outputs(model, {"input_ids": mask * draw.randint(1, 60), "attention_mask": mask})
            tokens.add(int(ends.sum()))
    sizes = {event.input_shapes[0][0] for event in profile.events() if "linear_" in event.name}
    assert sizes == {linear.rounded_up(size) for size in sizes} and len(tokens) > 20
    assert 10 < len(sizes) <= 24


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
        torch.testing.assert_close(one.state_dict(), before, rtol=0, atol=0)
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


# --- kernels of this machine, and int8 ----------------------------------------------------------


@pytest.fixture
def for_int8():
    """The kernels that are chosen for int8 here, and those without a library for few rows."""
    reason = kernels.why_no_kernels(torch.int8)
    if reason is not None:
        pytest.skip(reason)
    chosen = kernels.choose(torch.int8)
    return chosen, dataclasses.replace(chosen, few_rows=0)


def states_of_int8():
    """States (4, 32, 60) by name."""
    torch.manual_seed(4)
    states = torch.randn(4, 32, 60)
    large_feature, large_token = states.clone(), states.clone()
    large_feature[..., 7] *= 40
    large_token[1, 3] *= 200
    return {
        "plain": states,
        "a large feature": large_feature,
        "a large token": large_token,
        "after a GELU": nn.functional.gelu(large_token),
        "constant": torch.full_like(states, -3.5),
        "zeros": torch.zeros_like(states),
    }


@pytest.mark.parametrize("name", states_of_int8())
@torch.no_grad()
def test_int8_forms(name, for_int8):
    """A large feature is balanced; a large token keeps its own range, also among few rows."""
    states, layers = states_of_int8()[name], (nn.Linear(60, 31),)
    form = try_forms(nn.Sequential(*layers), states, [layers], for_int8[0].limit)[layers]
    assert not layers[0]._forward_pre_hooks
    assert (form.zero < 40) == (name in ("after a GELU", "zeros"))
    rows = states.flatten(0, 1)
    exact = layers[0](rows)
    for chosen in for_int8:
        product, plain = (chosen.pack(*layers, form=each) for each in (form, None))
        for some in (rows, rows[:60]):
            error, usual = (
                (each(some) - exact[: len(some)]).square().mean() for each in (product, plain)
            )
            # A plain range rounds to a scale of about 5 / 255, an error of scale² / 12 each.
            assert name != "plain" or usual <= 1.2e-4 * exact[: len(some)].square().mean()
            # Weights of 7 bits round coarsely where columns are balanced.
            most = 3.5 if len(some) <= chosen.few_rows or chosen.limit < 127 else 2
            assert error <= (0.5 if name == "a large feature" else most) * usual + 1e-5
        assert product(rows[:0]).shape == (0, 31)


@torch.no_grad()
def test_int8_after_a_gelu(for_int8):
    """A token of a text may be far larger than the random ones that are tried."""
    chosen, _ = for_int8
    torch.manual_seed(4)
    states, layers = nn.functional.gelu(torch.randn(4, 32, 60)), (nn.Linear(60, 31),)
    form = try_forms(nn.Sequential(*layers), states, [layers], chosen.limit)[layers]
    product, rows = chosen.pack(*layers, form=form), states[0].clone()
    rows[0] *= 200
    torch.testing.assert_close(product(rows)[1:], product(states[0])[1:])


@pytest.mark.parametrize(
    ("dtype", "check", "said"),
    [
        ("int8", "_is_exact", "no exact kernels for int8"),
        ("bfloat16", "_half_is_fast", "no kernels for"),
        ("auto", "_half_is_fast", ""),
    ],
)
def test_what_a_machine_lacks_is_float32(dtype, check, said, fresh_kernels, caplog):
    fresh_kernels.setattr(kernels, check, lambda *_: False)
    fresh_kernels.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    model = random_model("BertModel", random_config(25)).prepare_for_inference(dtype)
    assert model.dtype == prepared_kernels(model).dtype == torch.float32
    assert said in caplog.text
    assert ("so the model computes in float32" in caplog.text) == bool(said)


def test_int8_under_another_default_dtype(fresh_kernels, for_int8):
    """Kernels and forms are tried in float32, whatever `torch.set_default_dtype` says."""
    model, batch = model_and_batch("BertModel", 8)
    expected = outputs(copy.deepcopy(model).prepare_for_inference("int8"), batch)[0]
    kernels._int8_limit.cache_clear()
    torch.set_default_dtype(torch.bfloat16)
    try:
        prepared = copy.deepcopy(model).prepare_for_inference("int8")
        assert prepared_kernels(prepared) == for_int8[0]
        assert torch.equal(outputs(prepared, batch)[0], expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_nothing_is_packed_on_an_accelerator(monkeypatch, caplog):
    """The weights of this model are on the CPU, where they compute what a GPU would."""
    model, batch = model_and_batch("BertModel", 5)
    expected = outputs(model, batch)[0]
    monkeypatch.setattr(BertModel, "device", torch.device("cuda", 0))
    model.prepare_for_inference("int8")
    assert "dtype='int8' has no kernels on cuda; it computes in float32" in caplog.text
    monkeypatch.undo()
    assert prepared_kernels(model) is None and torch.equal(outputs(model, batch)[0], expected)


def test_auto_takes_what_the_machine_has(caplog, minilm_path, fresh_kernels):
    chosen = kernels.fastest_dtype(torch.device("cpu"))
    assert kernels.why_no_kernels(chosen) is None
    threads, random = torch.get_num_threads(), torch.get_rng_state()
    encoder = TextEncoder.from_pretrained(minilm_path, "auto", "cpu")
    # Measuring kernels leaves the caller's settings alone.
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), random)
    found = prepared_kernels(encoder.transformers_model)
    assert found == kernels.choose(chosen)
    assert encoder.precision == str(found)
    assert caplog.text.count(f"dtype='auto' is {found} here") == 1
    texts = ["A cat naps.", "The river rose over the night and the market was closed."]
    exact = TextEncoder.from_pretrained(minilm_path, "float32", "cpu").encode(texts)
    assert (encoder.encode(texts) * exact).sum(axis=1).min() > 0.999
    with pytest.raises(ValueError, match="dtype='auto' needs a prepared model"):
        TextEncoder.from_pretrained(minilm_path, "auto", "cpu", prepare=False)
