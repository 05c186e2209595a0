"""Metrics: against values worked out by hand."""

import pytest

from hf_bert_impl.tasks import metrics


def test_two_classes_count_class_one():
    found = metrics.classification_metrics([1, 1, 1, 0, 0], [1, 0, 1, 1, 0], 2)
    assert found["accuracy"] == pytest.approx(0.6)
    assert found["f1"] == pytest.approx(2 / 3)  # 2 hits, 3 predicted, 3 gold
    assert found["macro_f1"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert found["matthews_correlation"] == pytest.approx((2 * 1 - 1 * 1) / 6)


def test_numbers():
    found = metrics.regression_metrics([1, 2, 3, 4], [2, 4, 6, 20])
    assert found["spearman"] == pytest.approx(1)
    assert 0.8 < found["pearson"] < 0.95
    assert found["mse"] == pytest.approx((1 + 4 + 9 + 256) / 4)
    constant = metrics.regression_metrics([1, 2, 3], [5, 5, 5])
    assert (constant["pearson"], constant["spearman"]) == (0, 0)
