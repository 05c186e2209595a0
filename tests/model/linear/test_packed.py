"""Packed weights: the same numbers, the same model, and never a weight of before."""

import copy

import pytest
import torch
from torch import nn

from hf_bert_impl.model import kernels
from hf_bert_impl.model.preparing import packable, prepared_kernels
from tests.fuzz import changes as fuzz
from tests.model.cases import (
    assert_same,
    model_and_batch,
    outputs,
    pickled,
    random_config,
    random_model,
)

pytestmark = pytest.mark.usefixtures("needs_kernels")


def places(model):
    """The modules that can have packed weights, by path."""
    return {path: holder for holder, _, path in packable(model, "")}


def packed(model):
    """The paths at which weights are packed."""
    holders = places(model).items()
    found = {path: vars(holder).get("packed") for path, holder in holders}
    return {path for path, one in found.items() if one is not None and one.product is not None}


def same_as_plain(model, batch):
    """Compares the outputs with the unpacked model's, and returns the first."""
    found = outputs(model, batch)[0]
    plain = copy.deepcopy(model).train().train(model.training)
    expected = outputs(plain, batch)[0]
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max().clamp(min=1)
    return found


def test_what_is_packed_is_no_part_of_the_state(tmp_path):
    model, batch = model_and_batch("BertForMaskedLM", 5)
    before = copy.deepcopy(model.state_dict())
    for one in (model.prepare_for_inference(), copy.deepcopy(model), pickled(model)):
        outputs(one, batch)
        assert packed(one) == set(places(model))
        assert list(one.state_dict()) == list(before)
        assert all(torch.equal(one.state_dict()[name], value) for name, value in before.items())
    model.save_pretrained(tmp_path)
    assert not packed(type(model).from_pretrained(tmp_path))
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
def test_a_copy_in_another_precision(dtype):
    """Its weights are not packed by kernels of the precision before, which few CPUs have."""
    model, batch = model_and_batch("BertForMaskedLM", 8)
    again = copy.deepcopy(model.prepare_for_inference("float32")).to(dtype)
    expected = outputs(copy.deepcopy(model).train().eval().to(dtype), batch)[0]
    assert torch.equal(outputs(again, batch)[0], expected)
    assert not packed(again)


def test_the_first_call_of_a_copy_gives_the_bits_of_the_second():
    model, batch = model_and_batch("BertModel", 8)
    again = copy.deepcopy(model.prepare_for_inference())
    one = {name: value[:1, :3] for name, value in batch.items()}
    first, second = outputs(again, one)[0], outputs(again, one)[0]
    assert torch.equal(first, second) and torch.equal(first, outputs(model, one)[0])
    states = outputs(again, one, output_hidden_states=True)[0]  # by the modules
    assert torch.equal(first, states)


def test_a_copy_on_a_machine_without_the_kernels(monkeypatch):
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


#: Changes of a weight or bias, in addition to the random trials.
WRITES = {
    "one number": lambda site: site.module.weight.view(-1)[1].add_(5),
    "through data": lambda site: site.module.weight.data.mul_(1.5),
    "pruned by a mask": lambda site: site.module.weight.data.mul_(
        torch.arange(site.module.in_features) % 3 == 0  # the first number stays
    ),
    "bias": lambda site: site.module.bias.data.mul_(1.5),
}


def prepared_masked_lm():
    sizes = dict(num_attention_heads=3, hidden_size=30, num_hidden_layers=3)
    model, batch = model_and_batch("BertForMaskedLM", 7, tie_word_embeddings=True, **sizes)
    model.prepare_for_inference()
    return model, batch, outputs(model, batch)[0]


@pytest.mark.parametrize(
    "change",
    sorted({*WRITES, *fuzz.WEIGHTS} - {"add_ to a bias"}),  # which LayerNorm takes away again
)
@pytest.mark.parametrize(
    "place",
    [
        "bert.encoder.layer.0.attention.self.value",
        "bert.encoder.layer.0.output.dense",
        "cls.predictions.transform.dense",
    ],
)
def test_a_changed_weight_is_seen(place, change, caplog):
    """The layer computes as usual; the others are still packed."""
    model, batch, before = prepared_masked_lm()
    everything = packed(model)
    site = fuzz.Site(model, place, seed=1, is_reference=False)
    with torch.no_grad():
        (WRITES | fuzz.WEIGHTS)[change](site)
    assert (same_as_plain(model, batch) - before).abs().max() > 1e-3
    assert len(everything - packed(model)) <= 1
    model.prepare_for_inference()
    assert packed(model) == everything
    same_as_plain(model, batch)


def test_other_parameters_for_one_call():
    model, batch = model_and_batch("BertModel", 5)
    other = random_model("BertModel", model.config, seed=3)
    model.prepare_for_inference()
    expected, everything = outputs(model, batch)[0], packed(model)
    with torch.no_grad():
        swapped = torch.func.functional_call(model, dict(other.named_parameters()), (), batch)
    assert_same(swapped, outputs(other, batch), batch)
    assert packed(model) == everything and torch.equal(outputs(model, batch)[0], expected)


def test_a_layer_that_is_not_packed_is_said(caplog):
    model, _ = model_and_batch("BertModel", 18, num_hidden_layers=3)
    model.encoder.layer[1].output.dense.register_forward_hook(lambda *_: None)
    model.prepare_for_inference()
    assert packed(model) and "output.dense has a hook" in caplog.text


def test_forward_mode_derivatives():
    model = random_model("BertForMaskedLM", random_config(23, "BertForMaskedLM"))
    model.set_attn_implementation("eager")  # torch's fused kernel has none
    states = torch.randn(2, 5, model.config.hidden_size)
    direction = torch.randn_like(states)

    def run(states):
        return model(inputs_embeds=states)[0]

    with torch.no_grad():
        expected = torch.func.jvp(run, (states,), (direction,))[1]
        model.prepare_for_inference()
        found = torch.func.jvp(run, (states,), (direction,))[1]
    assert expected.abs().max() > 1e-2
    assert (found - expected).abs().max() < 1e-5


def test_a_model_made_in_inference_mode(caplog):
    with torch.inference_mode():
        model, batch = model_and_batch("BertModel", 3)
        model.prepare_for_inference()
        assert "where torch counts no changes of a weight" in caplog.text
        assert not packed(model)
        outputs(model, batch)


def test_a_model_that_torch_has_quantised():
    model, batch = model_and_batch("BertModel", 6)
    with pytest.warns(DeprecationWarning):
        quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    expected, exact = outputs(quantised, batch), outputs(model, batch)[1]
    assert 0 < (expected[1] - exact).abs().mean() < 0.1 * exact.abs().mean()
    with pytest.raises(ValueError, match=r"query is a torch\.ao\.\S+, whose weights are quantised"):
        quantised.prepare_for_inference("bfloat16")
    assert_same(outputs(quantised, batch), expected, batch)
