"""notebooks/lessons/classifier.py: padding, order and the weights that are looked at."""

import pytest
import torch

from lessons.classifier import MeanClassifier, SelfAttentionClassifier

TOKENS = torch.tensor([[5, 6, 7, 8, 9], [8, 5, 6, 0, 0]])


@pytest.mark.parametrize("kind", [SelfAttentionClassifier, MeanClassifier])
def test_padding_changes_nothing(kind):
    torch.manual_seed(0)
    model = kind(12, 3, size=8).eval()
    logits, weights = model(TOKENS)
    assert logits.shape == (2, 3) and weights.shape == (2, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2))
    assert weights[1, 3:].abs().max() == 0
    torch.testing.assert_close(model(TOKENS[1:, :3])[0], logits[1:])


def test_only_attention_knows_the_order():
    torch.manual_seed(0)
    with_order, without = SelfAttentionClassifier(12, 3, size=8), MeanClassifier(12, 3, size=8)
    for model in (with_order, without):
        model.eval()
    turned = TOKENS[:1].flip(1)
    assert (with_order(TOKENS[:1])[0] - with_order(turned)[0]).abs().max() > 1e-4
    torch.testing.assert_close(without(TOKENS[:1])[0], without(turned)[0])
