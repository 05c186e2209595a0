"""Losses: upstream's where upstream is right, and right under gradient accumulation."""

import pytest
import torch
from torch.nn import functional as F
from transformers.models.bert import modeling_bert as upstream

from tests.model.cases import masks, random_batch, random_config, random_labels, random_model

ACCUMULATING = (
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertLMHeadModel",
    "BertForNextSentencePrediction",
    "BertForSequenceClassification",
    "BertForMultipleChoice",
    "BertForTokenClassification",
)


def classifier(problem_type, num_labels):
    config = random_config(
        1, "BertForSequenceClassification", num_labels=num_labels, problem_type=problem_type
    )
    ours = random_model("BertForSequenceClassification", config)
    theirs = upstream.BertForSequenceClassification(upstream.BertConfig.from_dict(config.to_dict()))
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs.eval(), random_batch("BertForSequenceClassification", config, None)


@pytest.mark.parametrize(
    ("problem_type", "num_labels", "labels"),
    [
        ("regression", 1, torch.tensor([0.5, -1.0, 2.0, 0.0, 3.5])),
        ("regression", 1, torch.tensor([[0.5], [-1.0], [2.0], [0.0], [3.5]])),
        ("regression", 3, torch.randn(5, 3)),
        ("single_label_classification", 3, torch.tensor([0, 2, 1, -100, 2])),
        ("multi_label_classification", 3, torch.randint(0, 2, (5, 3)).float()),
        (None, 1, torch.tensor([0.5, -1.0, 2.0, 0.0, 3.5])),
        (None, 3, torch.tensor([0, 2, 1, 1, 2])),
        (None, 3, torch.randint(0, 2, (5, 3)).float()),
    ],
)
def test_sequence_classification_by_problem_type(problem_type, num_labels, labels):
    ours, theirs, batch = classifier(problem_type, num_labels)
    a, b = ours(**batch, labels=labels), theirs(**batch, labels=labels)
    assert a.loss.item() == pytest.approx(b.loss.item(), rel=1e-6)
    assert ours.config.problem_type == theirs.config.problem_type


def test_answers_beyond_the_sequence_are_ignored():
    config = random_config(1, "BertForQuestionAnswering")
    model = random_model("BertForQuestionAnswering", config)
    batch = random_batch("BertForQuestionAnswering", config, None)
    start = torch.tensor([2, 50, 3, 13, 4])
    end = torch.tensor([4, 60, 5, 14, 4])
    output = model(**batch, start_positions=start, end_positions=end)
    kept = [0, 2, 4]
    expected = (
        F.cross_entropy(output.start_logits[kept], start[kept])
        + F.cross_entropy(output.end_logits[kept], end[kept])
    ) / 2
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    column = model(**batch, start_positions=start[:, None], end_positions=end[:, None])
    assert torch.equal(column.loss, output.loss)


@pytest.mark.parametrize("head", ACCUMULATING)
def test_accumulated_gradients_are_those_of_one_batch(head):
    """Micro-batches with `num_items_in_batch`, as Trainer passes it, sum to the whole batch."""
    config = random_config(2, head)
    batch = random_batch(head, config, masks()["right"])
    labels = random_labels(head, config, batch)
    if head == "BertForPreTraining":  # equal shares of masked tokens: the case with one truth
        labels["labels"] = torch.where(torch.arange(13) < 1, labels["labels"].clamp(min=0), -100)
    predicted = labels["labels"][:, 1:] if head == "BertLMHeadModel" else labels["labels"]
    items = (predicted != -100).sum()

    whole = random_model(head, config)
    whole(**batch, **labels).loss.backward()
    parts = random_model(head, config)
    losses = []
    for rows in (slice(0, 2), slice(2, 5)):
        micro = {name: value[rows] for name, value in (batch | labels).items()}
        loss = parts(**micro, num_items_in_batch=items).loss
        losses.append(loss.item())
        loss.backward()
    for (name, a), (_, b) in zip(whole.named_parameters(), parts.named_parameters(), strict=True):
        if a.grad is not None:
            assert torch.allclose(a.grad, b.grad, atol=2e-6), name


@pytest.mark.parametrize("as_tensor", [True, False])
def test_multi_label_and_regression_count_numbers(as_tensor):
    for kind in ("multi_label_classification", "regression"):
        ours, _, batch = classifier(kind, 3)
        labels = torch.randint(0, 2, (5, 3)).float()
        items = torch.tensor(30) if as_tensor else 30
        half = ours(**batch, labels=labels, num_items_in_batch=items).loss
        assert half.item() == pytest.approx(ours(**batch, labels=labels).loss.item() / 2, rel=1e-6)


def test_a_batch_without_labelled_tokens_costs_nothing():
    config = random_config(1, "BertForMaskedLM")
    model = random_model("BertForMaskedLM", config)
    batch = random_batch("BertForMaskedLM", config, masks()["right"])
    loss = model(**batch, labels=torch.full((5, 13), -100)).loss
    loss.backward()
    assert loss.item() == 0
    assert not any(p.grad.any() for p in model.parameters() if p.grad is not None)


def test_shifted_labels_may_be_given():
    config = random_config(1, "BertLMHeadModel")
    model = random_model("BertLMHeadModel", config)
    batch = random_batch("BertLMHeadModel", config, None)
    labels = batch["input_ids"]
    shifted = F.pad(labels[:, 1:], (0, 1), value=-100)
    a = model(**batch, labels=labels).loss
    b = model(**batch, labels=labels, shift_labels=shifted).loss
    assert torch.equal(a, b)
    other = model(**batch, labels=labels, shift_labels=shifted.roll(1)).loss
    assert not torch.equal(a, other)


def test_the_cache_is_off_while_training():
    config = random_config(1, "BertLMHeadModel")
    model = random_model("BertLMHeadModel", config)
    ids = torch.tensor([[3, 4, 5]])
    assert model(ids).past_key_values is not None
    assert model(ids, labels=ids).past_key_values is None
