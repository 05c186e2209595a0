"""The table of kernels: what each computes, which is chosen, and that int8 sums are exact."""

import copy
import dataclasses
import math

import pytest
import torch
from torch import nn

from hf_bert_impl import BertModel, TextEncoder
from hf_bert_impl.model import kernels
from hf_bert_impl.model.int8 import FewInt8Sums, Int8Sums, SharedRange, try_forms
from hf_bert_impl.model.kernels import DTYPES, Kernels
from hf_bert_impl.model.linear import FEW_ROWS, NOT_FUSED, Fused
from hf_bert_impl.model.preparing import prepared_kernels
from tests.model.cases import model_and_batch, outputs, random_config, random_model

#: By precision how far a sum of 60 terms may be from float64's, in units of its largest number.
#: A sum of n terms in float32 is within n · eps / 2 of the sum of their magnitudes (Higham 2002,
#: section 3.1), which is a few times that number. The activations add some eps.
ERRORS = {
    "float32": 60 * torch.finfo(torch.float32).eps,
    "float16": 1e-3,
    "bfloat16": 2e-2,
    "int8": 4e-2,
}
ACTIVATIONS = {
    NOT_FUSED: lambda states: states,
    Fused("gelu", "none"): nn.functional.gelu,
    Fused("gelu", "tanh"): lambda states: nn.functional.gelu(states, approximate="tanh"),
    Fused("relu"): torch.relu,
    Fused("tanh"): torch.tanh,
    Fused("swish"): nn.functional.silu,
}


def forget():
    """Measurements are repeated from here on."""
    for value in vars(kernels).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()


@pytest.fixture
def fresh_choice(monkeypatch):
    forget()
    yield monkeypatch
    monkeypatch.undo()
    forget()


def choices(dtype):
    """The chosen kernels for a precision here, and the other ones that compute it."""
    precision = DTYPES[dtype]
    reason = kernels.why_no_kernels(precision)
    if reason is not None:
        pytest.skip(reason)
    chosen = kernels.choose(precision)
    if dtype == "float32":
        return [chosen, *(Kernels(torch.float32, rows) for rows in (0, FEW_ROWS, math.inf))]
    return [chosen, dataclasses.replace(chosen, few_rows=0)] if dtype == "int8" else [chosen]


@pytest.mark.parametrize("dtype", ERRORS)
def test_products(dtype):
    """One layer and three side by side, few rows and many, with what follows."""
    torch.manual_seed(3)
    layers = [nn.Linear(60, width) for width in (31, 47, 31)]
    states = torch.randn(259, 60)
    residual = torch.randn(259, 109)
    for chosen in choices(dtype):
        kind = chosen.states_dtype
        with torch.no_grad():
            exact = [nn.functional.linear(states.double(), *exact_of(layer)) for layer in layers]
            wide, narrow = torch.cat(exact, dim=1), exact[1]
            cast = [nn.Linear(60, la.out_features).to(kind) for la in layers]
            for layer, source in zip(cast, layers, strict=True):
                layer.load_state_dict(source.state_dict())
            joined, single = chosen.pack(*cast), chosen.pack(cast[1])
            for rows in (0, 1, 2, 64, 65, 259):
                some, rest = states[:rows].to(kind), residual[:rows].to(kind)
                near(joined(some), wide[:rows], dtype, chosen)
                near(joined(some, rest), wide[:rows] + residual[:rows], dtype, chosen)
                for activation, function in ACTIVATIONS.items():
                    found = single(some, activation=activation)
                    near(found, function(narrow[:rows]), dtype, chosen)
            assert torch.equal(some, states.to(kind)) and torch.equal(rest, residual.to(kind))


def exact_of(layer):
    return [parameter.double() for parameter in layer.parameters()]


def near(found, expected, dtype, chosen):
    assert found.shape == expected.shape and not found._is_view()
    if found.numel():
        error = (found.double() - expected).abs().max() / expected.abs().max().clamp(min=1)
        assert error <= ERRORS[dtype], str(chosen)


@pytest.mark.parametrize("kind", [Int8Sums, FewInt8Sums])
def test_int8_sums_are_those_of_whole_numbers(kind):
    """At random and at the extremes, for odd sizes; the same bits from both libraries."""
    limit = kernels._int8_limit(kind)
    if limit is None:
        pytest.skip("no exact sums here")
    generator = torch.Generator().manual_seed(1)
    for rows, inputs, outs in ((1, 7, 3), (5, 33, 65), (70, 515, 31), (301, 96, 130)):
        weight = torch.randint(-limit, limit + 1, (outs, inputs), generator=generator)
        states = torch.randint(-128, 128, (rows, inputs), generator=generator).float()
        weight[0], states[0] = limit, 127
        weight[-1], states[-1] = -limit, -128
        scale = torch.rand(outs, generator=generator)
        expected = (states.double() @ weight.double().T).float() * scale
        assert torch.equal(kind(weight.to(torch.int8), scale)(states), expected)


def test_few_rows_need_exact_sums_of_every_kind(fresh_choice):
    (chosen, *_) = choices("int8")
    if not chosen.few_rows:
        pytest.skip("no library for few rows here")
    exact = kernels._is_exact
    fresh_choice.setattr(
        kernels, "_is_exact", lambda kind, n: kind is not SharedRange and exact(kind, n)
    )
    forget()
    assert kernels.choose(torch.int8) == dataclasses.replace(chosen, few_rows=0)


def test_int8_of_constant_and_of_empty_states():
    layer = nn.Linear(12, 5)
    states = torch.full((70, 12), -3.5)
    with torch.no_grad():
        for chosen in choices("int8"):
            product = chosen.pack(layer)
            assert torch.allclose(product(states), layer(states), atol=0.1)
            assert torch.allclose(product(states * 0), layer(states * 0), atol=0.1)
            assert product(states[:0]).shape == (0, 5)


@torch.no_grad()
def test_int8_forms():
    """A large feature is balanced, the zero of a GELU is low, a large token keeps its own range."""
    (chosen, *_) = choices("int8")
    torch.manual_seed(4)
    states = torch.randn(4, 32, 60)
    large_feature, large_token = states.clone(), states.clone()
    large_feature[..., 7] *= 40
    large_token[1, 3] *= 200
    inputs = {"plain": states, "feature": large_feature, "token": large_token}
    inputs["gelu"] = nn.functional.gelu(large_token)
    layers, forms = {}, {}
    for name, each in inputs.items():
        place = layers[name] = (nn.Linear(60, 31),)
        unused = (nn.Linear(60, 31),)
        found = try_forms(nn.Sequential(*place), each, [place, unused], chosen.limit)
        assert list(found) == [place] and not place[0]._forward_pre_hooks
        forms[name] = found[place]
    assert {name for name, form in forms.items() if form.shares_range} == {"plain", "feature"}
    assert forms["gelu"].zero < 40
    assert all(90 < form.zero < 166 for name, form in forms.items() if name != "gelu")
    balance = forms["feature"].balance
    assert balance[7] > 2 * balance[torch.arange(60) != 7].max()
    assert torch.equal(balance.log2(), balance.log2().round())
    for name, place in layers.items():
        rows = inputs[name].flatten(0, 1)
        exact = place[0](rows)
        for some in (rows, rows[:60]):
            error, plain = (
                (chosen.pack(*place, form=form)(some) - exact[: len(some)]).square().mean()
                for form in (forms[name], None)
            )
            assert error < (3.5 if len(some) <= chosen.few_rows else 1.2) * plain, name
            assert name != "feature" or error < 0.5 * plain


@pytest.mark.parametrize(
    ("dtype", "check", "said"),
    [
        ("int8", "_is_exact", "no exact kernels for int8"),
        ("bfloat16", "_half_is_fast", "no kernels for"),
        ("auto", "_half_is_fast", ""),
    ],
)
def test_what_a_machine_lacks_is_float32(dtype, check, said, fresh_choice, caplog):
    fresh_choice.setattr(kernels, check, lambda *_: False)
    fresh_choice.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    model = random_model("BertModel", random_config(25)).prepare_for_inference(dtype)
    assert model.dtype == prepared_kernels(model).dtype == torch.float32
    assert said in caplog.text
    assert ("so the model computes in float32" in caplog.text) == bool(said)


def test_int8_under_another_default_dtype(fresh_choice):
    """Kernels and forms are tried in float32, whatever `torch.set_default_dtype` says."""
    model, batch = model_and_batch("BertModel", 8)
    (chosen, *_) = choices("int8")
    expected = outputs(copy.deepcopy(model).prepare_for_inference("int8"), batch)[0]
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        forget()
        torch.set_default_dtype(dtype)
        try:
            prepared = copy.deepcopy(model).prepare_for_inference("int8")
            assert prepared_kernels(prepared) == chosen
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


def test_auto_takes_what_the_machine_has(caplog, minilm_path, fresh_choice):
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
