"""Metrics of predictions, one function per kind of task, from scikit-learn, scipy and seqeval.

Notation: N items, L labels.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from hf_bert_impl.extras import require

Metrics = dict[str, float]
PURPOSE = "evaluation"


def classification_metrics(gold: Any, predicted: Any, num_labels: int) -> Metrics:
    """Scores of one class per item.

    Args:
        gold: (N,) class numbers.
        predicted: (N,) class numbers.
        num_labels: L.

    Returns:
        `accuracy`, `f1`, `macro_f1` (the mean over classes) and `matthews_correlation`. `f1` is
        that of class 1 for two classes, otherwise `macro_f1`.
    """
    sklearn = require("sklearn.metrics", "train", PURPOSE)
    every = list(range(num_labels))
    macro = sklearn.f1_score(gold, predicted, labels=every, average="macro", zero_division=0.0)
    f1 = macro
    if num_labels == 2:
        f1 = sklearn.f1_score(gold, predicted, pos_label=1, average="binary", zero_division=0.0)
    with warnings.catch_warnings(action="ignore"):  # of a set with a single class
        matthews = sklearn.matthews_corrcoef(gold, predicted)
    return {
        "accuracy": float(sklearn.accuracy_score(gold, predicted)),
        "f1": float(f1),
        "macro_f1": float(macro),
        "matthews_correlation": float(matthews),
    }


def multilabel_metrics(gold: Any, predicted: Any) -> Metrics:
    """Scores of any number of labels per item.

    Args:
        gold: (N, L) of zeros and ones.
        predicted: (N, L) of zeros and ones.

    Returns:
        `accuracy` (the share of items with all labels right), `f1` over all labels of all items,
        and `macro_f1`, its mean over labels.
    """
    sklearn = require("sklearn.metrics", "train", PURPOSE)
    options = {"zero_division": 0.0}
    return {
        "accuracy": float(sklearn.accuracy_score(gold, predicted)),
        "f1": float(sklearn.f1_score(gold, predicted, average="micro", **options)),
        "macro_f1": float(sklearn.f1_score(gold, predicted, average="macro", **options)),
    }


def regression_metrics(gold: Any, predicted: Any) -> Metrics:
    """Scores of numbers (N,).

    Returns:
        `pearson` and `spearman`, 0 where one side is constant; and `mse`.
    """
    gold, predicted = np.asarray(gold, np.float64), np.asarray(predicted, np.float64)
    # Sorted, so that the sums have the same bits in any order of the items.
    order = np.lexsort((predicted, gold))
    gold, predicted = gold[order], predicted[order]
    stats = require("scipy.stats", "train", PURPOSE)
    figures = {"pearson": 0.0, "spearman": 0.0}
    if len(gold) > 1 and np.ptp(gold) > 0 and np.ptp(predicted) > 0:
        figures["pearson"] = float(stats.pearsonr(gold, predicted)[0])
        figures["spearman"] = float(stats.spearmanr(gold, predicted)[0])
    return figures | {"mse": float(np.mean((gold - predicted) ** 2))}


def entity_metrics(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Metrics:
    """Scores of the tags of words, in BIO or another scheme of chunks.

    Args:
        gold: The tags of each sentence.
        predicted: As many for each sentence.

    Returns:
        `f1`, `precision` and `recall` of whole entities as conlleval counts them, and `accuracy` of
        single tags.
    """
    seqeval = require("seqeval.metrics", "train", PURPOSE)
    gold, predicted = [list(tags) for tags in gold], [list(tags) for tags in predicted]
    # Warns of tags without a prefix, and of sets without entities.
    with warnings.catch_warnings(action="ignore"):
        return {
            "f1": float(seqeval.f1_score(gold, predicted)),
            "precision": float(seqeval.precision_score(gold, predicted)),
            "recall": float(seqeval.recall_score(gold, predicted)),
            "accuracy": float(seqeval.accuracy_score(gold, predicted)),
        }


def perplexity(total_loss: float, tokens: int) -> float:
    """The exponential of the mean loss in nats; infinite if it exceeds the range of floats."""
    try:
        return math.exp(total_loss / max(tokens, 1))
    except OverflowError:
        return math.inf
