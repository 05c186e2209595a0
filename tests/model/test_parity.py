"""Forward, loss and gradients against upstream, over random models and every kind of padding."""

import pytest
import torch

from hf_bert_impl.parity.comparison import compare_models, reference_model
from tests.model.cases import (
    ACTIVATIONS,
    HEADS,
    masks,
    random_batch,
    random_config,
    random_labels,
    random_model,
)


def cases(head, config, **options):
    batches = {n: random_batch(head, config, m, **options) for n, m in masks().items()}
    # A second batch without positions, so that the model's own are tested.
    batches["right, own positions"] = {
        k: v for k, v in batches["right"].items() if k != "position_ids"
    }
    return batches, {n: random_labels(head, config, b) for n, b in batches.items()}


def assert_parity(report, rows=1):
    assert len(report.rows) >= rows
    assert report.passed, [str(row) for row in report.rows if not row.passed][:5]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("head", HEADS)
def test_forward_loss_and_gradients(head, seed):
    config = random_config(seed, head)
    ours = random_model(head, config, seed)
    batches, labels = cases(head, config)
    report = compare_models(
        ours,
        reference_model(ours),
        batches,
        labels=labels,
        gradients=True,
        backends=("eager", "sdpa"),
    )
    assert_parity(report, rows=2 * 6 * (config.num_hidden_layers + 2))


@pytest.mark.parametrize("head", HEADS)
def test_the_same_function_in_float64(head):
    """Rounding apart: what differs here is a different formula, not a different order of sums."""
    config = random_config(11, head, hidden_act="gelu")
    ours = random_model(head, config).double()
    batches, labels = cases(head, config)
    report = compare_models(
        ours,
        reference_model(ours),
        batches,
        # Upstream's causal loss goes through float32 whatever the model is in.
        labels=None if head == "BertLMHeadModel" else labels,
        gradients=True,
        tolerance=1e-10,
        backends=("sdpa",),
    )
    assert_parity(report)


@pytest.mark.parametrize("head", HEADS)
def test_bfloat16_error_is_not_above_upstreams(head):
    config = random_config(3, head)
    ours = random_model(head, config)
    batches, labels = cases(head, config)
    report = compare_models(
        ours,
        reference_model(ours),
        batches,
        labels=labels,
        dtype=torch.bfloat16,
        backends=("eager", "sdpa"),
    )
    assert_parity(report)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("head", HEADS)
def test_dropout_stands_where_upstream_has_it(head, backend):
    """Same seed, same random numbers in the same order, so the same loss in train mode."""
    config = random_config(5, head, padding_free=False)
    ours = random_model(head, config)
    batches, labels = cases(head, config)
    report = compare_models(
        ours,
        reference_model(ours),
        batches,
        labels=labels,
        gradients=True,
        backends=(backend,),
        seed=17,
    )
    assert_parity(report)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(activation):
    config = random_config(2, "BertForMaskedLM", hidden_act=activation)
    ours = random_model("BertForMaskedLM", config)
    batches, labels = cases("BertForMaskedLM", config)
    report = compare_models(
        ours, reference_model(ours), batches, labels=labels, gradients=True, backends=("sdpa",)
    )
    assert_parity(report)


def test_packed_dropout_drops_the_asked_share():
    """Padding-free training has dropout too: its mean over seeds is the result without it."""
    config = random_config(
        1, num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.3
    )
    model = random_model("BertModel", config, std=0.05)
    batch = random_batch("BertModel", config, masks()["right"])
    with torch.no_grad():
        calm = model(**batch).last_hidden_state
        model.train()
        noisy = []
        for seed in range(400):
            torch.manual_seed(seed)
            noisy.append(model(**batch).last_hidden_state)
        torch.manual_seed(3)
        again = model(**batch).last_hidden_state
    assert torch.equal(noisy[3], again)
    assert not torch.equal(noisy[3], noisy[4])
    spread = torch.stack(noisy).std(dim=0).max()
    assert (torch.stack(noisy).mean(dim=0) - calm).abs().max() < 0.25 * spread


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("padding_free", [True, False])
def test_minilm(minilm_path, backend, padding_free):
    """Real weights, real words: last hidden state and pooled output within 1e-5 of upstream."""
    from transformers import AutoTokenizer
    from transformers import BertModel as Upstream

    from hf_bert_impl import BertModel

    texts = ["A cat.", "The committee, having met for hours, adjourned without a vote.", "Why?"]
    batch = AutoTokenizer.from_pretrained(minilm_path)(texts, padding=True, return_tensors="pt")
    ours = BertModel.from_pretrained(minilm_path, attn_implementation=backend).eval()
    ours.config.padding_free = padding_free
    theirs = Upstream.from_pretrained(minilm_path, attn_implementation=backend).eval()
    with torch.no_grad():
        a, b = ours(**batch), theirs(**batch)
    mask = batch["attention_mask"].bool()
    assert (a.last_hidden_state - b.last_hidden_state)[mask].abs().max() < 1e-5
    assert (a.pooler_output - b.pooler_output).abs().max() < 1e-5
