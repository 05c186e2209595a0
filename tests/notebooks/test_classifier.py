"""notebooks/lessons/classifier.py and reviews.py: padding, order, polarity, and learning."""

import pytest
import torch

from lessons.classifier import MeanClassifier, SelfAttentionClassifier
from lessons.reviews import accuracy, load_reviews, train_classifier

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


def test_self_attention_learns_to_negate(monkeypatch, capsys):
    monkeypatch.delenv("HF_BERT_DATA", raising=False)
    reviews = load_reviews(train_size=600)
    assert "generated sample" in capsys.readouterr().out
    assert len(reviews.train) == 600 and len(reviews.test) == 300
    torch.manual_seed(0)
    model = SelfAttentionClassifier(len(reviews.vocabulary), 2, size=24, heads=2, dropout=0.1)
    losses = train_classifier(model, reviews, epochs=6, learning_rate=5e-3)
    assert losses[-1] < losses[0]
    assert accuracy(model, reviews.test, reviews.vocabulary) > 0.9


def test_real_reviews(data_dir, monkeypatch):
    monkeypatch.setenv("HF_BERT_DATA", str(data_dir))
    reviews = load_reviews()
    assert (len(reviews.train), len(reviews.test)) == (6920, 1821)
    assert {review.label for review in reviews.test} == {0, 1}
