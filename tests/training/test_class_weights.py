"""How much each class counts in the loss."""

from pathlib import Path

import pytest
import torch
from torch import nn

import hf_bert_impl
from hf_bert_impl.tasks.base import Split
from hf_bert_impl.tasks.registry import make_task
from hf_bert_impl.training.finetuning_trainer import _weighted_loss, class_weights


def weights_of(given, labels, rows, name="classification", **options):
    task = make_task(name, **options)
    task.labels = labels
    field = "token_labels" if name == "token-classification" else "labels"
    found = class_weights(given, task, Split([], [{field: row} for row in rows]))
    return None if found is None else found.tolist()


def test_weights():
    """Balanced ones give each class the same say."""
    abc, rows = ["a", "b", "c"], (0, 0, 0, 0, 1, 1, 2)
    assert weights_of(None, abc, rows) is None
    assert weights_of("balanced", abc, rows) == pytest.approx([7 / 12, 7 / 6, 7 / 3])
    assert weights_of("c=3", abc, rows) == pytest.approx([7 / 9, 7 / 9, 7 / 3])
    rows = [[-100, 0, 0, 1, -100], [-100, 0]]
    found = weights_of("balanced", ["O", "B-x"], rows, "token-classification")
    assert found == pytest.approx([4 / 6, 4 / 2])
    rows = [[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    found = weights_of("balanced", ["a", "b"], rows, multi_label=True)
    assert found == pytest.approx([1 / 3, 3])
    with pytest.raises(ValueError, match="regression, which has no classes"):
        weights_of("balanced", None, [1.0], "regression")


def test_weighted_loss_is_torchs():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 4, generator=generator)
    labels = torch.randint(0, 4, (3, 5), generator=generator)
    labels[1, 2:] = -100
    weights = torch.tensor([0.5, 1.0, 2.0, 0.1])
    config = hf_bert_impl.BertConfig(problem_type="single_label_classification")
    loss = _weighted_loss(weights, config)
    total = nn.functional.cross_entropy(
        logits.view(-1, 4), labels.view(-1), weight=weights, reduction="sum"
    )
    assert loss({"logits": logits}, labels) == pytest.approx(float(total) / 12)
    # Halves of a step add up to the whole.
    parts = [loss({"logits": logits[rows]}, labels[rows], 12) for rows in (slice(1), slice(1, 3))]
    assert float(sum(parts)) == pytest.approx(float(total) / 12)
    several = hf_bert_impl.BertConfig(problem_type="multi_label_classification")
    hot = (labels.clamp(min=0) % 2).float()[:, :4]
    expected = nn.BCEWithLogitsLoss(pos_weight=weights)(logits[:, 0], hot)
    found = _weighted_loss(weights, several)({"logits": logits[:, 0]}, hot)
    assert found == pytest.approx(float(expected))


def test_class_weights_move_the_predictions(run, sentiment):
    test = sentiment("test", 40, 3)
    report = run(learning_rate=4e-3, class_weights="G=50", test=test)
    share = Path(test).read_text().count("\tG") / 40
    assert report["test"]["accuracy"] == pytest.approx(share, abs=0.1)  # nearly everything is G now
