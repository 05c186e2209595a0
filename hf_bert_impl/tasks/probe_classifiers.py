"""The classifiers of a probe: how their penalties are chosen, and how they are trained.

Notation: N examples, F numbers of a probe's input, L labels, or levels of a score.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_bert_impl.extras import require
from hf_bert_impl.tasks.metrics import Metrics, classification_metrics, regression_metrics
from hf_bert_impl.tasks.probe_network import Floats, fit_networks
from hf_bert_impl.tasks.probe_options import CLASSIFIERS, PROTOCOLS, ProbeOptions

#: The share of the training data by which the MLP knows when to stop, where no other data are left.
STOPPING_SHARE = 0.05

#: From inputs (N, F) to labels or scores (N,).
Predict = Callable[[Floats], NDArray[Any]]


@dataclasses.dataclass
class Part:
    """The inputs (N, F) of a probe and its labels."""

    inputs: Floats
    labels: NDArray[Any]

    def take(self, rows: NDArray[np.intp]) -> Part:
        return Part(self.inputs[rows], self.labels[rows])


class Probe:
    """A kind of classifier with a penalty to choose."""

    def __init__(self, protocol: str, num_labels: int, options: ProbeOptions) -> None:
        self.best = PROTOCOLS[protocol]
        self.num_labels = num_labels
        self.options = options

    def score(self, part: Part, predict: Predict) -> Metrics:
        predicted = predict(part.inputs)
        if not self.num_labels:
            return regression_metrics(part.labels, predicted)
        return classification_metrics(part.labels, predicted, self.num_labels)

    def folds(self, part: Part, count: int) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Rows to train on and rows that are held out, with the classes' shares in each."""
        selection = require("sklearn.model_selection", "train", "probing")
        kind = selection.StratifiedKFold if self.num_labels else selection.KFold
        splitter = kind(count, shuffle=True, random_state=self.options.seed)
        yield from splitter.split(part.inputs, part.labels)

    def fit_best(self, train: Part, validation: Part | None) -> Predict:
        """Fits with the penalty that is best on validation data or folds.

        One thread is used: a step is so short that more would mostly wait for each other.
        """
        with require("threadpoolctl", "train", "probing").threadpool_limits(1):
            return self._fit_best(train, validation)

    def _fit_best(self, train: Part, validation: Part | None) -> Predict:
        if validation is not None:
            pairs = [(train, validation)]
        else:
            classes = np.unique(train.labels, return_counts=True)[1]
            fewest = min(classes) if self.num_labels else len(train.labels)
            folds = self.folds(train, int(min(self.options.folds, fewest)))
            pairs = [(train.take(rest), train.take(held)) for rest, held in folds]
        penalties = CLASSIFIERS[self.options.classifier]
        totals = [0.0] * len(penalties)
        for rest, held in pairs:
            for number, predict in enumerate(self.fit(rest, held, penalties)):
                totals[number] += self.score(held, predict)[self.best]
        chosen = penalties[max(range(len(penalties)), key=lambda number: totals[number])]
        if validation is None and self.options.classifier == "mlp":
            order = np.random.default_rng(self.options.seed).permutation(len(train.labels))
            held_out = max(1, round(STOPPING_SHARE * len(order)))
            train, validation = train.take(order[held_out:]), train.take(order[:held_out])
        return next(iter(self.fit(train, validation, (chosen,))))

    def fit(self, train: Part, held: Part | None, penalties: Sequence[float]) -> Iterable[Predict]:
        """Fits with each penalty; the MLP stops where it is best on the part that is held out."""
        if self.options.classifier == "mlp":
            assert held is not None
            return self._fit_mlp(train, held, penalties)
        return self._fit_logistic(train, penalties)

    def _fit_logistic(self, train: Part, penalties: Sequence[float]) -> Iterator[Predict]:
        linear = require("sklearn.linear_model", "train", "probing")
        # Each begins where the last one ended, which is near.
        model = linear.LogisticRegression(max_iter=500, warm_start=True)
        rows, labels, shares = np.arange(len(train.labels)), train.labels, None
        if not self.num_labels:
            rows, labels, shares = _between_levels(train.labels)
        for penalty in penalties:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of an optimizer that would go on a little longer
                model.set_params(C=penalty).fit(train.inputs[rows], labels, sample_weight=shares)
            if self.num_labels:
                yield model.predict
            else:
                yield lambda inputs: model.predict_proba(inputs) @ model.classes_

    def _fit_mlp(self, train: Part, held: Part, penalties: Sequence[float]) -> list[Predict]:
        levels = np.arange(self.num_labels)
        rows, labels, shares = np.arange(len(train.labels)), train.labels, np.ones(1)
        if not self.num_labels:
            rows, labels, shares = _between_levels(train.labels)
            levels = np.arange(labels.min(), labels.max() + 1)
        targets = np.zeros((len(train.labels), len(levels)), np.float32)
        targets[rows, labels - levels[0]] = shares

        def decide(probabilities: Callable[[Floats], Floats]) -> Predict:
            if self.num_labels:
                return lambda inputs: probabilities(inputs).argmax(axis=1)
            return lambda inputs: probabilities(inputs) @ levels

        options = self.options
        networks = fit_networks(
            train.inputs,
            targets,
            penalties,
            lambda probabilities: self.score(held, decide(probabilities))[self.best],
            hidden=options.hidden,
            optimizer=options.optimizer,
            tenacity=options.tenacity,
            epoch_size=options.epoch_size,
            seed=options.seed,
        )
        return [decide(it) for it in networks]


def _between_levels(
    scores: NDArray[np.float64],
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
    """Scores as mixtures of the two levels around them (Tai et al. 2015, section 4.2).

    To the cross-entropy a score is two examples with its shares in both as their weights; a whole
    number is one.

    Returns:
        The row, the level and the weight of each of these examples.
    """
    low = np.floor(scores)
    shares = np.concatenate([low + 1 - scores, scores - low])
    levels = np.concatenate([low, low + 1]).astype(np.intp)
    kept = np.flatnonzero(shares)
    return kept % len(scores), levels[kept], shares[kept]
