"""Probes: SentEval's interface and protocols, on vectors whose content is known."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold

from hf_bert_impl.tasks.base import Columns
from hf_bert_impl.tasks.probes import (
    ProbeOptions,
    read_probe,
    run_probe,
)

COLUMNS = Columns("0", None, "1")


def batcher(params, batch):
    """The numbers that a text consists of as its vector."""
    return [[float(word) for word in words] for words in batch]


def lines(rows):
    return "".join("\t".join(map(str, row)) + "\n" for row in rows)


def text(numbers):
    return " ".join(f"{number:.4f}" for number in numbers)


def classes(count, seed, noise=0.0):
    """Three classes by the largest of three among five numbers."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(count, 5))
    kinds = points[:, 1:4].argmax(axis=1)
    flip = rng.random(count) < noise
    kinds[flip] = rng.integers(3, size=flip.sum())
    return [(text(point), "xyz"[kind]) for point, kind in zip(points, kinds, strict=True)]


def read(write, rows):
    return read_probe("classification", {"train": str(write("train.tsv", lines(rows)))}, COLUMNS)


def test_what_an_encoder_may_not_give(write):
    task, examples = read(write, classes(30, 1))
    for wrong, words in (
        (lambda params, batch: [[float("nan")]] * len(batch), "not all of them finite"),
        (lambda params, batch: [[1.0]] * (len(batch) - 1), r"shape \(29, 1\) for 30 texts"),
        (lambda params, batch: [1.0] * len(batch), r"shape \(30,\) for 30 texts"),
    ):
        with pytest.raises(ValueError, match=words):
            run_probe("classification", task, examples, wrong, options=ProbeOptions(folds=2))


def test_nested_folds_equal_plain_scikit_learn(write):
    rows = classes(130, 5, noise=0.4)
    points = np.array([[float(word) for word in line.split()] for line, _ in rows])
    labels = np.array([label for _, label in rows])
    expected = []
    for rest, held in StratifiedKFold(4, shuffle=True, random_state=7).split(points, labels):
        inner = StratifiedKFold(4, shuffle=True, random_state=7)
        search = GridSearchCV(
            LogisticRegression(max_iter=500), {"C": [0.25, 0.5, 1, 2, 4, 8]}, cv=inner
        )
        expected.append(search.fit(points[rest], labels[rest]).score(points[held], labels[held]))
    options = ProbeOptions(folds=4, seed=7)
    result = run_probe("classification", *read(write, rows), batcher, options=options)
    assert result.scores["accuracy"] == pytest.approx(np.mean(expected), abs=1e-9)
    assert result.deviations["accuracy"] == pytest.approx(np.std(expected, ddof=1), abs=1e-9)
