"""Losses: upstream's where upstream is right, and right under gradient accumulation."""

import pytest
import torch
from torch.nn import functional as F

from hf_bert_impl.parity import reference_model
from tests.model.cases import LOSS_HEADS, gradients, model_and_batch, random_labels


def classifier(problem_type, num_labels):
    fields = dict(num_labels=num_labels, problem_type=problem_type)
    model, batch = model_and_batch("BertForSequenceClassification", 1, "none", **fields)
    return model, reference_model(model), batch


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


@pytest.mark.parametrize(
    "head", [head for head in LOSS_HEADS if head != "BertForQuestionAnswering"]
)
def test_accumulated_gradients_are_those_of_one_batch(head):
    """Micro-batches with `num_items_in_batch`, as Trainer passes it, sum to the whole batch."""
    model, batch = model_and_batch(head, 2)
    labels = random_labels(head, model.config, batch)
    if head == "BertForPreTraining":  # equal shares of masked tokens: the case with one truth
        labels["labels"] = torch.where(torch.arange(13) < 1, labels["labels"].clamp(min=0), -100)
    predicted = labels["labels"][:, 1:] if head == "BertLMHeadModel" else labels["labels"]
    items = (predicted != -100).sum()

    expected = gradients(model, model(**batch, **labels).loss)
    micro = [
        {name: value[rows] for name, value in (batch | labels).items()}
        for rows in (slice(0, 2), slice(2, 5))
    ]
    found = gradients(model, sum(model(**part, num_items_in_batch=items).loss for part in micro))
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, atol=2e-6), name


@pytest.mark.parametrize("kind", ["multi_label_classification", "regression"])
def test_multi_label_and_regression_count_numbers(kind):
    """-100, which means "ignored" elsewhere, is a target there, as transformers has it."""
    ours, theirs, batch = classifier(kind, 3)
    labels = torch.randint(0, 2, (5, 3)).float()
    loss = ours(**batch, labels=labels).loss.item()
    for items in (torch.tensor(30), 30):
        half = ours(**batch, labels=labels, num_items_in_batch=items).loss
        assert half.item() == pytest.approx(loss / 2, rel=1e-6)
    labels[:3, 1] = -100
    expected = theirs(**batch, labels=labels).loss.item()
    for items in (None, 12, torch.tensor(12)):  # the Trainer counts without them
        found = ours(**batch, labels=labels, num_items_in_batch=items).loss.item()
        assert found == pytest.approx(expected, rel=1e-6)


def test_a_batch_without_labels_has_no_loss():
    """A mean over no items would be NaN, and end a training run."""
    model, batch = model_and_batch("BertForMaskedLM", 2)
    labels = torch.full_like(batch["input_ids"], -100)
    assert model(**batch, labels=labels).loss == model.train()(**batch, labels=labels).loss == 0


def test_shifted_labels_may_be_given():
    model, batch = model_and_batch("BertLMHeadModel", 1, "none")
    labels = batch["input_ids"]
    shifted = F.pad(labels[:, 1:], (0, 1), value=-100)
    a = model(**batch, labels=labels).loss
    b = model(**batch, labels=labels, shift_labels=shifted).loss
    assert torch.equal(a, b)
    other = model(**batch, labels=labels, shift_labels=shifted.roll(1)).loss
    assert not torch.equal(a, other)
    last = dict(labels=labels, shift_labels=shifted[:, -2:].contiguous(), logits_to_keep=2)
    expected = reference_model(model)(**batch, **last).loss
    assert torch.allclose(model(**batch, **last).loss, expected, rtol=1e-6)
