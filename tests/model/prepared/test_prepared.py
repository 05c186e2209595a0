"""Prepared inference: same numbers, same model."""

import copy

import pytest
import torch

from hf_bert_impl.model import prepared
from hf_bert_impl.model.configuration_bert import CODERTIMO_FIELDS
from tests.model.cases import (
    MASKED_LM,
    assert_same,
    model_and_batch,
    outputs,
    pickled,
    random_config,
    random_model,
)
from tests.model.prepared.cases import head_is_prepared, is_prepared

pytestmark = pytest.mark.usefixtures("needs_kernels")


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


def test_a_copy_takes_weights_that_came_before_its_first_call():
    model, batch = model_and_batch("BertModel", 8)
    again = copy.deepcopy(model.prepare_for_inference())
    with torch.no_grad():
        for one in (model, again):
            one.encoder.layer[0].output.dense.weight.mul_(1.5)
    expected = outputs(model.prepare_for_inference(), batch)[0]
    with torch.inference_mode():
        assert torch.equal(again(**batch)[0], expected)
    assert torch.equal(outputs(again, batch)[0], expected)  # outside of that mode too
    assert is_prepared(again)


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
    assert is_prepared(model)


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


def test_gradients_and_scores_take_the_usual_way():
    model, batch = model_and_batch("BertModel", 9)
    expected = outputs(model, batch)
    model.prepare_for_inference()
    model(**batch).last_hidden_state.sum().backward()
    assert model.encoder.layer[0].output.dense.weight.grad is not None
    assert outputs(model, batch, output_attentions=True).attentions is not None
    ones = torch.ones(model.config.num_attention_heads)
    assert_same(outputs(model, batch, head_mask=ones), expected, batch)
    model.set_attn_implementation("eager")
    assert_same(outputs(model, batch), expected, batch)
    assert is_prepared(model)


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


@pytest.mark.parametrize("part", ["encoder.layer.0.output.dense", "pooler", "embeddings"])
def test_weights_without_memory(part):
    model = random_model("BertModel", random_config(6)).train()
    weights = {name: p.clone() for name, p in model.named_parameters() if part not in name}
    model.get_submodule(part).to("meta")
    with pytest.raises(ValueError, match=rf"^{part}\S* is on the meta device.*; expected .*; load"):
        model.prepare_for_inference("auto")
    assert model.training and not is_prepared(model)
    assert all(torch.equal(model.get_parameter(name), weights[name]) for name in weights)


def test_a_model_that_torch_has_quantised():
    model, batch = model_and_batch("BertModel", 6)
    with pytest.warns(DeprecationWarning):
        quantised = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})
    expected = outputs(quantised, batch)
    with pytest.raises(ValueError, match=r"query is a torch\.ao\.\S+, whose weights are quantised"):
        quantised.prepare_for_inference("bfloat16")
    assert_same(outputs(quantised, batch), expected, batch)
