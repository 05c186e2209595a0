"""The kernels of this machine: which are chosen, and int8. `test_conformance.py` compares them."""

import copy
import dataclasses

import pytest
import torch
from torch import nn

from hf_bert_impl import BertModel, TextEncoder
from hf_bert_impl.model import kernels
from hf_bert_impl.model.int8 import try_forms
from hf_bert_impl.model.preparing import prepared_kernels
from tests.model.cases import model_and_batch, outputs, random_config, random_model


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
