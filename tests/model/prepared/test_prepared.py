"""Prepared inference: same numbers, same model."""

import copy
import itertools

import pytest
import torch
from torch.autograd import forward_ad

from hf_bert_impl.model import cpu_kernels, prepared
from hf_bert_impl.model.configuration_bert import CODERTIMO_FIELDS
from tests.model.cases import (
    ENCODER_HEADS,
    MASKED_LM,
    assert_same,
    default,
    masks,
    model_and_batch,
    outputs,
    random_batch,
    random_config,
    random_model,
)
from tests.model.prepared.cases import head_is_prepared, is_prepared, pickled

pytestmark = pytest.mark.usefixtures("needs_kernels")
OTHER_ACTIVATIONS = ("gelu_new", "relu", "silu", "tanh", "gelu_10")


@pytest.mark.parametrize(
    ("head", "activation"),
    [(head, "gelu") for head in ENCODER_HEADS]
    + [("BertForMaskedLM", activation) for activation in OTHER_ACTIVATIONS],
)
def test_the_same_numbers(head, activation):
    for padding, states in itertools.product(masks(), (True, False)):
        model, batch = model_and_batch(head, 2, padding, hidden_act=activation)
        expected = outputs(model, batch, output_hidden_states=states)
        model.prepare_for_inference()
        assert is_prepared(model)
        with torch.inference_mode():
            found = model(**batch, output_hidden_states=states)
        assert_same(found, expected, batch)


@pytest.mark.parametrize("head", ENCODER_HEADS)
def test_bfloat16_error_is_that_of_the_model(head):
    if cpu_kernels.why_no_kernels(torch.bfloat16) is not None:
        pytest.skip("this CPU has no bfloat16 kernels")
    config = random_config(3, head, hidden_act="gelu")
    model = random_model(head, config, std=0.1)
    batch = random_batch(head, config, masks()["right"])
    exact = outputs(model, batch)[0]
    half = copy.deepcopy(model).to(torch.bfloat16)
    own = (outputs(half, batch)[0] - exact).abs().mean()
    half.prepare_for_inference()
    assert is_prepared(half)
    assert (outputs(half, batch)[0] - exact).abs().mean() < 1.5 * own + 1e-3
    converted = copy.deepcopy(model).prepare_for_inference("bfloat16")
    assert converted.dtype == torch.bfloat16
    assert torch.equal(outputs(converted, batch)[0], outputs(half, batch)[0])


def test_int8_is_close():
    config = random_config(4, hidden_size=60, num_attention_heads=5, intermediate_size=96)
    model = random_model("BertModel", config, std=0.1)
    batch = random_batch("BertModel", config, masks()["right"])
    exact = outputs(model, batch).last_hidden_state
    if cpu_kernels.why_no_kernels(torch.int8) is not None:
        pytest.skip("this CPU or torch has no exact int8 kernels")
    model.prepare_for_inference("int8")
    found = outputs(model, batch).last_hidden_state
    assert model.dtype == torch.float32
    error = (found - exact).abs().mean() / exact.abs().mean()
    assert 0 < error < 0.03


@pytest.mark.parametrize("activation", ["gelu", "gelu_10"])
def test_feed_forward_in_slices(monkeypatch, activation):
    model, batch = model_and_batch("BertModel", 2, hidden_act=activation)
    model.prepare_for_inference()
    whole = outputs(model, batch)
    monkeypatch.setattr(prepared, "LARGEST_BLOCK", 0)
    monkeypatch.setattr(prepared, "SLICE_TOKENS", 7)
    assert_same(outputs(model, batch), whole, batch, tolerance=1e-6)


@pytest.mark.parametrize("head", ["BertModel", *MASKED_LM])
def test_what_is_prepared_is_no_part_of_the_state(head, tmp_path):
    model = random_model(head, random_config(5, head))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.prepare_for_inference().save_pretrained(tmp_path)
    saved = type(model).from_pretrained(tmp_path)
    for one in (model, saved, copy.deepcopy(model), pickled(model)):
        assert list(one.state_dict()) == list(before)
        assert all(torch.equal(one.state_dict()[name], value) for name, value in before.items())
        assert is_prepared(one) == (one is not saved)
        assert head == "BertModel" or head_is_prepared(one) == (one is not saved)
    assert head == "BertModel" or not head_is_prepared(model.train())


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, lambda m: pickled(copy.deepcopy(m))])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_copy_packs_its_own_weights(copied, dtype):
    model, batch = model_and_batch("BertForMaskedLM", 7)
    model.prepare_for_inference(dtype)
    kernels = str(model.bert.encoder.prepared.kernels)
    expected = outputs(model, batch)[0]
    again = copied(model)
    assert str(again.bert.encoder.prepared.kernels) == kernels
    assert torch.equal(outputs(again, batch)[0], expected)
    assert isinstance(again.bert.encoder.prepared, prepared.PreparedEncoder)
    assert isinstance(again.cls.predictions.prepared, prepared.PreparedLMHead)
    weight = again.bert.encoder.layer[0].output.dense.weight
    with torch.no_grad():
        weight.mul_(2)
    assert not torch.equal(outputs(again, batch)[0], expected)
    assert torch.equal(outputs(model, batch)[0], expected) and is_prepared(model)


def test_a_copy_takes_weights_that_came_before_its_first_call():
    model, batch = model_and_batch("BertModel", 8)
    again = copy.deepcopy(model.prepare_for_inference())
    with torch.no_grad():
        for one in (model, again):
            one.encoder.layer[0].output.dense.weight.mul_(1.5)
    expected = outputs(model.prepare_for_inference(), batch)[0]
    assert torch.equal(outputs(again, batch)[0], expected)
    assert is_prepared(again)


def test_a_copy_in_inference_mode_serves_later_calls():
    model, batch = model_and_batch("BertModel", 8)
    again = copy.deepcopy(model.prepare_for_inference())
    with torch.inference_mode():
        first = again(**batch)[0]
    assert torch.equal(first, outputs(again, batch)[0]) and is_prepared(again)


@pytest.mark.parametrize("change", ["train", "dtype", "hook"])
def test_a_copy_that_cannot_be_prepared_computes_as_usual(change):
    model, batch = model_and_batch("BertModel", 9)
    plain, again = copy.deepcopy(model), copy.deepcopy(model.prepare_for_inference("float32"))
    for one in (plain, again):
        if change == "train":
            one.train().eval()
        elif change == "dtype":
            one.to(torch.float64)
        else:
            one.encoder.layer[0].register_forward_hook(lambda *_: None)
    assert is_prepared(again) == (change != "train")
    assert torch.equal(outputs(again, batch)[0], outputs(plain, batch)[0])
    assert not is_prepared(again)


def test_a_copy_on_a_machine_without_the_kernels(monkeypatch):
    model, batch = model_and_batch("BertModel", 9)
    expected = outputs(copy.deepcopy(model).prepare_for_inference("float32"), batch)[0]
    again = copy.deepcopy(model.prepare_for_inference("int8"))
    here = prepared.why_no_kernels
    monkeypatch.setattr(
        prepared,
        "why_no_kernels",
        lambda dtype, *a, **k: "none here" if dtype == torch.int8 else here(dtype, *a, **k),
    )
    assert again.encoder.prepared.kernels.dtype == torch.float32
    assert torch.equal(outputs(again, batch)[0], expected) and is_prepared(again)


def test_a_copy_with_gradients_waits():
    model, batch = model_and_batch("BertModel", 9)
    again = copy.deepcopy(model.prepare_for_inference())
    again(**batch)[0].sum().backward()
    assert again.encoder.layer[0].output.dense.weight.grad is not None
    assert isinstance(again.encoder.prepared, prepared.NotYetPacked)


@pytest.mark.parametrize("head", ["BertModel", "BertForMaskedLM"])
def test_forward_mode_derivatives(head):
    config = random_config(23, head)
    model = random_model(head, config)
    model.set_attn_implementation("eager")  # torch's fused kernel has none
    states = torch.randn(2, 5, config.hidden_size)
    direction = torch.randn_like(states)

    def run(states):
        return model(inputs_embeds=states)[0]

    with torch.no_grad():
        expected = torch.func.jvp(run, (states,), (direction,))[1]
        model.prepare_for_inference()
        found = torch.func.jvp(run, (states,), (direction,))[1]
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(states, direction)
            again = forward_ad.unpack_dual(run(dual)).tangent
    assert expected.abs().max() > 1e-2
    assert (found - expected).abs().max() < 1e-5 and (again - expected).abs().max() < 1e-5
    assert is_prepared(model)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("what", ["device", "dtype"])
def test_defaults_of_torch_have_no_part_in_it(what, dtype):
    model, batch = model_and_batch("BertModel", 24)
    expected = outputs(copy.deepcopy(model).prepare_for_inference(dtype), batch).last_hidden_state
    with default(what):
        model.prepare_for_inference(dtype)
        found = outputs(model, batch).last_hidden_state
        assert is_prepared(model)
    assert torch.equal(found, expected)


def test_a_prepared_masked_lm_head_in_every_precision():
    config = random_config(13, "BertForMaskedLM", hidden_act="gelu")
    model = random_model("BertForMaskedLM", config, std=0.1)
    states = torch.randn(2, 5, config.hidden_size)
    with torch.inference_mode():
        exact = model.cls(states)
    for dtype, bound in (("float32", 2e-5), ("bfloat16", 4e-2), ("int8", 2e-5)):
        prepared_model = copy.deepcopy(model).prepare_for_inference(dtype)
        if not is_prepared(prepared_model):
            continue  # no kernels for it here
        assert head_is_prepared(prepared_model)
        with torch.inference_mode():
            found = prepared_model.cls(states.to(prepared_model.dtype))
            nothing = prepared_model.cls(states[:0].to(prepared_model.dtype))
        assert (found - exact).abs().max() <= bound * exact.abs().max(), dtype
        assert nothing.shape == (0, 5, config.vocab_size)


def test_a_masked_lm_head_that_is_not_plain_is_left_alone(caplog):
    model, batch = model_and_batch("BertForMaskedLM", 14)
    model.cls.predictions.transform.register_forward_hook(lambda m, i, o: o * 2)
    expected = outputs(model, batch)
    model.prepare_for_inference()
    assert is_prepared(model) and not head_is_prepared(model)
    assert "masked-LM head not prepared" in caplog.text
    assert_same(outputs(model, batch), expected, batch)


def test_dropout_switched_on_by_itself():
    """Monte Carlo dropout: eval mode, but for the dropout modules."""
    model, batch = model_and_batch("BertModel", 15, hidden_dropout_prob=0.5)
    model.prepare_for_inference()
    model.encoder.layer[0].output.dropout.train()
    first, second = (outputs(model, batch).last_hidden_state for _ in range(2))
    assert not is_prepared(model)
    assert (first - second).abs().max() > 1e-3


def test_layer_norms_and_embeddings_are_not_copied():
    """What was not packed may change; the model stays prepared and right."""
    model, batch = model_and_batch("BertModel", 8)
    model.prepare_for_inference()
    with torch.no_grad():
        model.encoder.layer[0].output.LayerNorm.weight.mul_(1.5)
        model.embeddings.word_embeddings.weight.mul_(1.5)
    found = outputs(model, batch)
    assert is_prepared(model)
    assert_same(found, outputs(copy.deepcopy(model), batch), batch)


def test_gradients_and_scores_take_the_usual_way():
    model, batch = model_and_batch("BertModel", 9)
    model.prepare_for_inference()
    model(**batch).last_hidden_state.sum().backward()
    assert model.encoder.layer[0].output.dense.weight.grad is not None
    assert outputs(model, batch, output_attentions=True).attentions is not None
    assert outputs(model, batch, head_mask=torch.ones(model.config.num_attention_heads))
    assert is_prepared(model)


@pytest.mark.parametrize("head", ["BertModel", "BertForMaskedLM"])
def test_autocast_computes_as_usual(head):
    model, batch = model_and_batch(head, 16)
    with torch.autocast("cpu", torch.bfloat16):
        expected = outputs(model, batch)
        model.prepare_for_inference()
        found = outputs(model, batch)
    for key in expected:
        assert found[key].dtype == expected[key].dtype and torch.equal(found[key], expected[key])


def test_a_backend_may_be_chosen_afterwards():
    model, batch = model_and_batch("BertModel", 9)
    model.prepare_for_inference()
    expected = outputs(model, batch)
    model.set_attn_implementation("eager")
    assert_same(outputs(model, batch), expected, batch)


def test_where_it_cannot_be_prepared(caplog):
    relative = random_model("BertModel", random_config(1, position_embedding_type="relative_key"))
    decoder = random_model("BertLMHeadModel", random_config(1, "BertLMHeadModel"))
    hooked = random_model("BertModel", random_config(1))
    hooked.encoder.layer[0].register_forward_hook(lambda m, i, o: None)
    empty = random_model("BertModel", random_config(1, num_hidden_layers=0))
    codertimo = random_model("BertModel", random_config(1, **CODERTIMO_FIELDS))
    batch = {"input_ids": torch.tensor([[1, 2]])}
    for model in (relative, decoder, hooked, empty, codertimo):
        assert prepared.why_not(model.base_model.encoder)
        before = outputs(model, batch)[0]
        model.prepare_for_inference()
        assert not is_prepared(model)
        assert torch.equal(outputs(model, batch)[0], before)


@pytest.mark.parametrize("dtype", ["float23", torch.int32])
def test_unknown_dtype(dtype):
    model = random_model("BertModel", random_config(1))
    with pytest.raises(ValueError, match=r"is not known; use one of float32, .*int8"):
        model.prepare_for_inference(dtype)


def test_the_kernels_are_those_of_the_cpu():
    model = random_model("BertModel", random_config(6)).to("meta").eval()
    assert "the packed kernels are the CPU's" in prepared.why_not(model.encoder, torch.int8)


@pytest.mark.parametrize("part", ["encoder.layer.0.output.dense", "pooler", "embeddings"])
@pytest.mark.parametrize("dtype", [None, "auto", "int8"])
def test_weights_without_memory(part, dtype):
    model = random_model("BertModel", random_config(6)).train()
    weights = {name: p.clone() for name, p in model.named_parameters() if part not in name}
    model.get_submodule(part).to("meta")
    with pytest.raises(ValueError, match=rf"^{part}\S* is on the meta device.*; expected .*; load"):
        model.prepare_for_inference(dtype)
    assert model.training and not is_prepared(model)
    assert all(torch.equal(model.get_parameter(name), weights[name]) for name in weights)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_a_model_that_torch_has_quantised(dtype):
    model, batch = model_and_batch("BertModel", 6)
    with pytest.warns(DeprecationWarning):
        quantised = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})
    expected = outputs(quantised, batch)
    with pytest.raises(ValueError, match=r"query is a torch\.ao\.\S+, whose weights are quantised"):
        quantised.prepare_for_inference(dtype)
    assert_same(outputs(quantised, batch), expected, batch)
