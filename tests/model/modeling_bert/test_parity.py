"""Forward, loss and gradients against upstream, over random models and every kind of padding."""

import pytest
import torch
from transformers import AutoTokenizer

from hf_bert_impl import BertModel
from hf_bert_impl.parity import compare_models, load_reference, reference_model
from tests.model.cases import (
    ACTIVATIONS,
    BACKENDS,
    HEADS,
    LOSS_HEADS,
    NO_DROPOUT,
    assert_same,
    masks,
    outputs,
    random_batch,
    random_config,
    random_labels,
    random_model,
)


def assert_parity(model, *, labelled=True, **options):
    """Compares a model with upstream's, with every padding and with positions of its own."""
    head, config = type(model).__name__, model.config
    batches = {name: random_batch(head, config, mask) for name, mask in masks().items()}
    batches["right, own positions"] = dict(batches["right"])
    del batches["right, own positions"]["position_ids"]
    labels = {name: random_labels(head, config, batch) for name, batch in batches.items()}
    options = {"labels": labels if labelled else None, "backends": BACKENDS, **options}
    report = compare_models(model, reference_model(model), batches, **options)
    rows = len(batches) * len(options["backends"]) * (config.num_hidden_layers + 2)
    assert len(report.rows) >= rows
    assert report.passed, report.summary()


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
@pytest.mark.parametrize("head", HEADS)
def test_forward_loss_and_gradients(head, seed):
    model = random_model(head, random_config(seed, head), seed)
    assert_parity(model, gradients=True)


@pytest.mark.parametrize("head", HEADS)
def test_the_same_function_in_float64(head):
    """Rounding apart: what differs here is a different formula, not a different order of sums."""
    model = random_model(head, random_config(11, head, hidden_act="gelu")).double()
    # Upstream's causal loss goes through float32 whatever the model is in.
    labelled = head != "BertLMHeadModel"
    assert_parity(model, labelled=labelled, gradients=True, tolerance=1e-10, backends=("sdpa",))


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_bfloat16_error_is_not_above_upstreams(head):
    assert_parity(random_model(head, random_config(3, head)), dtype=torch.bfloat16)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("head", HEADS)
def test_dropout_stands_where_upstream_has_it(head, backend):
    """Same seed, same random numbers in the same order, so the same loss in train mode."""
    model = random_model(head, random_config(5, head, padding_free=False))
    assert_parity(model, gradients=True, backends=(backend,), seed=17)


@pytest.mark.parametrize("head", LOSS_HEADS)
def test_training_without_padding_and_dropout(head):
    """Where only labelled tokens are scored."""
    model = random_model(head, random_config(4, head, **NO_DROPOUT))
    assert_parity(model, gradients=True, backends=("sdpa",), seed=17)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(activation):
    model = random_model("BertForMaskedLM", random_config(2, hidden_act=activation))
    assert_parity(model, gradients=True, backends=("sdpa",))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("padding_free", [True, False])
def test_minilm(minilm_path, backend, padding_free):
    """Real weights, real words."""
    texts = ["A cat.", "The committee, having met for hours, adjourned without a vote.", "Why?"]
    batch = AutoTokenizer.from_pretrained(minilm_path)(texts, padding=True, return_tensors="pt")
    model = BertModel.from_pretrained(minilm_path, attn_implementation=backend).eval()
    model.config.padding_free = padding_free
    reference, _ = load_reference("BertModel", minilm_path, attn_implementation=backend)
    assert_same(outputs(model, batch), outputs(reference, batch), batch, tolerance=1e-5)
