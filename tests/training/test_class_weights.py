"""How much each class counts in the loss."""

import pytest
import torch
from torch import nn

import hf_bert_impl
from hf_bert_impl.tasks.base import Split
from hf_bert_impl.tasks.registry import make_task
from hf_bert_impl.training.finetuning_trainer import _weighted_loss, class_weights


def test_balanced_weights_give_each_class_the_same_say():
    task = make_task("classification")
    task.labels = ["a", "b", "c"]
    split = Split([], [{"labels": n} for n in (0, 0, 0, 0, 1, 1, 2)])
    found = class_weights("balanced", task, split)
    assert (found * torch.tensor([4, 2, 1])).tolist() == pytest.approx([7 / 3] * 3)
    assert class_weights(None, task, split) is None
    named = class_weights("c=3", task, split)
    assert (named / named[0]).tolist() == pytest.approx([1, 1, 3])
    assert (named * torch.tensor([4, 2, 1])).sum() == pytest.approx(7)
    with pytest.raises(ValueError, match="regression, which has no classes"):
        class_weights("balanced", make_task("regression"), split)


def test_weights_of_tags_and_of_several_labels():
    tags = make_task("token-classification")
    tags.labels = ["O", "B-x"]
    split = Split([], [{"token_labels": [-100, 0, 0, 1, -100]}, {"token_labels": [-100, 0]}])
    assert class_weights("balanced", tags, split).tolist() == pytest.approx([4 / 6, 4 / 2])
    several = make_task("classification", multi_label=True)
    several.labels = ["a", "b"]
    split = Split([], [{"labels": row} for row in ([1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0])])
    assert class_weights("balanced", several, split).tolist() == pytest.approx([1 / 3, 3])


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
    assert _weighted_loss(weights, several)({"logits": logits[:, 0]}, hot) == pytest.approx(
        float(expected)
    )


def test_class_weights_move_the_predictions(run, tiny_bert, tmp_path, sentiment):
    test = sentiment("test", 40, 3)
    options = {"epochs": 1, "learning_rate": 1e-3, "test": test}
    plain = run(**options)["test"]
    heavy = run(**options, class_weights="G=50", output=tmp_path / "heavy")["test"]
    assert heavy != plain
    assert heavy["accuracy"] < 0.7  # nearly everything is G now
