"""Prepared models that are changed, or are not of the stock modules: never a stale weight."""

import copy

import pytest
import torch
from torch import nn

from hf_bert_impl.model import prepared
from hf_bert_impl.model.layers import BertLayer, BertOutput
from tests.fuzz import changes as fuzz
from tests.model.cases import model_and_batch, outputs, random_config, random_model
from tests.model.prepared.cases import (
    WEIGHT_CHANGES,
    assert_not_stale,
    head_is_prepared,
    is_prepared,
)

pytestmark = pytest.mark.usefixtures("needs_kernels")


@pytest.mark.parametrize("change", WEIGHT_CHANGES)
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_a_changed_weight_is_seen(name, change):
    model, batch = model_and_batch("BertModel", 6)
    model.prepare_for_inference()
    before = outputs(model, batch).last_hidden_state
    part = getattr(model.encoder.layer[0].attention.self, name)
    for parameter in (part.weight, part.bias):
        WEIGHT_CHANGES[change](parameter)
    found = assert_not_stale(model, batch)
    assert name == "key" or (found - before).abs().max() > 1e-3


@pytest.mark.parametrize("dtype", [None, "int8"])
def test_shared_memory_changes_nothing(dtype):
    """Every pool of sentence-transformers moves the weights there; later changes are seen."""
    model, batch = model_and_batch("BertForMaskedLM", 6)
    model.prepare_for_inference(dtype)
    expected = outputs(model, batch).logits
    for _ in range(2):
        model.share_memory()
        assert torch.equal(outputs(model, batch).logits, expected)
        assert is_prepared(model)
        assert head_is_prepared(model)
    model.bert.encoder.layer[0].output.dense.weight.data.mul_(1.5)
    assert_not_stale(model, batch)


@pytest.mark.parametrize("change", [None, "one number"])
def test_weights_side_by_side_at_odd_places(change):
    """`vector_to_parameters` puts them there if a size before them is odd."""
    model, batch = model_and_batch("BertForMaskedLM", 6, vocab_size=61)
    parameters = list(model.parameters())
    torch.nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(parameters), parameters)
    weight = model.bert.encoder.layer[0].output.dense.weight
    assert weight.storage_offset() % 2
    expected = outputs(model, batch).logits
    model.prepare_for_inference()
    assert torch.allclose(outputs(model, batch).logits, expected, atol=1e-5)
    assert is_prepared(model)
    if change is not None:
        WEIGHT_CHANGES[change](weight)
        assert_not_stale(model, batch)


#: Those of the random trials after which a model has to be prepared anew. It may be a new model.
LARGER_CHANGES = sorted(
    {
        *fuzz.WHOLE_WEIGHTS,
        *fuzz.MODULES,
        *fuzz.DEPTH,
        *fuzz.LAST,
        *fuzz.FRESH,
        *fuzz.DTYPE,
        "new Parameter",
        "data swapped",
        "train and back",
    }
    - {"pickle"}  # is prepared like the one it was made of
)


@pytest.mark.parametrize("change", LARGER_CHANGES)
def test_a_larger_change_is_seen(change):
    sizes = dict(num_attention_heads=3, hidden_size=30, num_hidden_layers=3)
    model, batch = model_and_batch("BertModel", 7, **sizes)
    model.prepare_for_inference()
    site = fuzz.Site(model, "encoder.layer.0.output.dense", seed=1, is_reference=False)
    with torch.no_grad():
        model = fuzz.apply(change, site)
    assert_not_stale(model, batch)


def test_what_torch_does_not_count_is_seen_within_some_tokens(monkeypatch):
    """Of a model too large to be checked at every call. What torch counts is seen at once."""
    monkeypatch.setattr(prepared, "PIECE_BYTES", 64)
    monkeypatch.setattr(prepared, "CHECKED_TOKENS", 500)
    config = random_config(17)
    model = random_model("BertModel", config)
    batch = {"input_ids": torch.randint(5, config.vocab_size, (2, 7))}
    weight = model.encoder.layer[-1].output.dense.weight
    for row in (1, -2):  # wherever the check has come to
        outputs(model.prepare_for_inference(), batch)
        weight.data[row, 1:-1].mul_(1.5)
        tokens = 0
        while is_prepared(model):
            assert tokens < 500
            found = outputs(model, batch)[0]
            tokens += 14
        assert torch.equal(found, assert_not_stale(model, batch))
        outputs(model.prepare_for_inference(), batch)
        with torch.no_grad():
            weight[row, 1:-1].mul_(1.5)
        assert_not_stale(model, batch)


@pytest.mark.parametrize("row", [1, -1])
def test_one_token_of_tied_embeddings(row):
    model, batch = model_and_batch("BertForMaskedLM", 11, tie_word_embeddings=True)
    model.prepare_for_inference()
    outputs(model, batch)
    model.bert.embeddings.word_embeddings.weight.data[row] *= 2
    found = outputs(model, batch).logits
    assert not head_is_prepared(model)
    assert (found - outputs(copy.deepcopy(model), batch).logits).abs().max() < 1e-4


#: What is done to a layer, and what is said of it then.
REPLACED = {
    "linear": (
        lambda layer: setattr(layer.attention.self.query, "__class__", fuzz.Doubled),
        "attention.self.query is a",
    ),
    "additional": (lambda layer: layer.add_module("adapter", nn.Identity()), "adapter is"),
    "no bias": (lambda layer: setattr(layer.output.dense, "bias", None), "dense has no bias"),
}


@pytest.mark.parametrize("name", REPLACED)
@pytest.mark.parametrize("before", [True, False])
def test_replaced_modules(name, before, caplog):
    change, message = REPLACED[name]
    model, batch = model_and_batch("BertModel", 18, num_hidden_layers=3)
    if before:
        change(model.encoder.layer[1])
        model.prepare_for_inference()
        assert message in caplog.text
    else:
        model.prepare_for_inference()
        change(model.encoder.layer[1])
    assert_not_stale(model, batch)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("kind", [nn.ReLU, nn.Tanhshrink])
def test_a_replaced_activation(before, kind):
    """The module in the model is called, whatever the config says."""
    model, batch = model_and_batch("BertForMaskedLM", 19, hidden_act="gelu")
    if not before:
        model.prepare_for_inference()
    model.cls.predictions.transform.transform_act_fn = kind().eval()
    model.bert.encoder.layer[0].intermediate.intermediate_act_fn = kind().eval()
    expected = outputs(copy.deepcopy(model), batch).logits
    model.config.hidden_act = "gelu_new"
    if before:
        model.prepare_for_inference()
        assert is_prepared(model) and head_is_prepared(model)
    found = outputs(model, batch).logits
    assert is_prepared(model) == before
    assert (found - expected).abs().max() < 2e-5 * expected.abs().max().clamp(min=1)


@pytest.mark.parametrize("patched", [BertOutput, BertLayer, nn.Linear])
def test_a_patched_class(monkeypatch, patched):
    model, batch = model_and_batch("BertModel", 20)
    model.prepare_for_inference()
    forward = patched.forward
    monkeypatch.setattr(patched, "forward", lambda *a, **k: forward(*a, **k) * 1.5)
    found = outputs(model, batch).last_hidden_state
    assert torch.equal(found, outputs(copy.deepcopy(model), batch).last_hidden_state)
    model.prepare_for_inference()
    assert not is_prepared(model)


HEAD_CHANGES = {
    "embeddings, to which it is tied": lambda m: m.bert.embeddings.word_embeddings.weight.mul_(1.5),
    "bias": lambda m: m.cls.predictions.bias.data.mul_(1.5),
    "dense": lambda m: m.cls.predictions.transform.dense.weight.data.mul_(1.5),
    "more tokens": lambda m: m.resize_token_embeddings(m.config.vocab_size + 3),
    "another decoder": lambda m: m.set_output_embeddings(nn.Linear(m.config.hidden_size, 7)),
    "hook": lambda m: m.cls.predictions.decoder.register_forward_hook(lambda m, i, o: o * 2),
    "mode": lambda m: m.cls.train(),
    "double": lambda m: m.double(),
}


@pytest.mark.parametrize("change", HEAD_CHANGES)
def test_a_changed_masked_lm_head_is_seen(change):
    model, batch = model_and_batch("BertForMaskedLM", 11, tie_word_embeddings=True)
    model.prepare_for_inference()
    assert head_is_prepared(model)
    before = outputs(model, batch)[0]
    with torch.no_grad():
        HEAD_CHANGES[change](model)
    found = outputs(model, batch)[0]
    assert not head_is_prepared(model)
    expected = outputs(copy.deepcopy(model), batch)[0]
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()  # encoder still prepared
    same = change in ("mode", "double")
    assert same or found.shape != before.shape or (found - before).abs().max() > 1e-2
