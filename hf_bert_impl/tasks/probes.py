"""Probes: how much of a task a simple classifier reads off fixed sentence vectors.

The protocols and the interface are those of SentEval (Conneau and Kiela 2018,
https://arxiv.org/abs/1803.05449), on files of one's own and with scikit-learn: a `prepare` that
sees all texts once, and a `batcher` that turns a batch of texts into vectors.

Notation: N examples, D numbers of a vector, F numbers of a probe's input, K levels of a score.
"""

from __future__ import annotations

import dataclasses
import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_bert_impl.data.option_ranges import COUNT, MILLION, Range, check_ranges
from hf_bert_impl.errors import InputError, check_choice
from hf_bert_impl.extras import require
from hf_bert_impl.tasks.base import Columns, Example, Task
from hf_bert_impl.tasks.metrics import (
    Metrics,
    classification_metrics,
    regression_metrics,
)
from hf_bert_impl.tasks.registry import make_task

Floats = NDArray[np.float64]
#: Kinds of task: what the probe sees of vectors u and v, and the score that counts.
PROTOCOLS = {
    "classification": "accuracy",
    "pair": "accuracy",
    "entailment": "accuracy",
    "relatedness": "pearson",
}
CLASSIFIERS = ("logistic", "mlp")
#: Inverse strengths of the L2 penalty that are tried.
STRENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
#: Folds by which the strength is chosen where there are no validation data.
INNER_FOLDS = 3


class Params(dict[str, Any]):
    """What `prepare` and `batcher` are given, and may add to: a dict with attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


#: Texts as lists of words to (texts, D) vectors.
Batcher = Callable[[Params, list[list[str]]], Any]
#: Called with all texts of a task before the first batch.
Prepare = Callable[[Params, list[list[str]]], Any]


@dataclasses.dataclass(frozen=True)
class ProbeOptions:
    """How to probe."""

    classifier: str = "logistic"
    """`logistic`, or `mlp` with one hidden layer."""
    hidden: int = 50
    """Units of that layer."""
    folds: int = 10
    """Folds of the cross-validation where there are no test data."""
    batch_size: int = 128
    """Texts that `batcher` gets at once."""
    seed: int = 1111
    """The seed of the folds and of the MLP's weights."""

    def __post_init__(self) -> None:
        check_choice("the classifier", self.classifier, CLASSIFIERS)
        check_ranges(self, hidden=COUNT, folds=Range(2, MILLION, whole=True))


@dataclasses.dataclass(frozen=True)
class ProbeResult:
    """What a probe found."""

    scores: Metrics
    """On the test data, or the mean over folds."""
    deviations: Metrics | None
    """The standard deviation over folds; None with test data."""
    examples: dict[str, int]
    """How many there were, by the name of the data."""


@dataclasses.dataclass
class _Part:
    """The inputs (N, F) of a probe and its labels."""

    inputs: Floats
    labels: NDArray[Any]

    def take(self, rows: NDArray[np.intp]) -> _Part:
        return _Part(self.inputs[rows], self.labels[rows])


def read_probe(
    protocol: str, named: Mapping[str, str], columns: Columns, dataset: str | None = None
) -> tuple[Task, dict[str, list[Example]]]:
    """Reads the data of a probe.

    Args:
        protocol: One of `PROTOCOLS`.
        named: The files (splits of a data set) by the names "train", "validation" and "test".
        columns: Where they have what; all protocols but "classification" need a pair.
        dataset: A `datasets` id in place of files.

    Returns:
        The task, which has the labels, and the examples by name.

    Raises:
        ValueError: There is no such protocol, or the data cannot be used.
    """
    check_choice("the protocol", protocol, PROTOCOLS)
    if (columns.pair is None) != (protocol == "classification"):
        wanted = "no second text" if protocol == "classification" else "a second text"
        raise InputError(
            f"the column of the second text is {columns.pair}",
            f"{wanted} for {protocol}",
            "mend the text-pair column or the protocol",
        )
    kind = "regression" if protocol == "relatedness" else "classification"
    task = make_task(kind, columns, dataset)
    examples = {name: task.read(source) for name, source in named.items()}
    task.learn_labels(examples["train"], [])
    for part in examples.values():
        task.check_labels(part)
    return task, examples


def run_probe(
    protocol: str,
    task: Task,
    examples: Mapping[str, Sequence[Example]],
    batcher: Batcher,
    prepare: Prepare | None = None,
    options: ProbeOptions | None = None,
) -> ProbeResult:
    """Trains and judges a probe.

    With test data it is trained on the training data; the strength of its penalty is the best on
    the validation data, or over folds of the training data where there are none. Without test data
    the training data are cross-validated, and the strength is chosen inside each fold.

    Args:
        protocol: One of `PROTOCOLS`.
        task: From `read_probe`.
        examples: From `read_probe`.
        batcher: Turns texts, as lists of words, into vectors.
        prepare: Called before with all texts.
        options: How to probe.

    Returns:
        The scores.

    Raises:
        ValueError: A class has fewer examples than there are folds.
    """
    options = options or ProbeOptions()
    require("sklearn", "train", "probing")
    params = Params(batch_size=options.batch_size, seed=options.seed, current_task=protocol)
    parts = _parts(protocol, task, examples, batcher, prepare, params)
    counts = {name: len(part) for name, part in examples.items()}
    probe = _Probe(protocol, len(task.labels), options)
    train, validation = parts["train"], parts.get("validation")
    if "test" in parts:
        predict = probe.fit_best(train, validation)
        return ProbeResult(probe.score(parts["test"], predict), None, counts)
    if validation is not None:
        raise InputError(
            "there are validation data but no test data",
            "both, or neither for cross-validation",
            "name test data",
        )
    scores = [
        probe.score(train.take(held), probe.fit_best(train.take(rest), None))
        for rest, held in probe.folds(train, options.folds)
    ]
    columns = {name: [fold[name] for fold in scores] for name in scores[0]}
    means = {name: statistics.fmean(values) for name, values in columns.items()}
    deviations = {name: statistics.stdev(values) for name, values in columns.items()}
    return ProbeResult(means, deviations, counts)


def encoder_batcher(encode: Callable[[list[str]], Any]) -> Batcher:
    """A batcher of a function from texts to vectors, such as `TextEncoder.encode`."""
    return lambda params, batch: encode([" ".join(words) for words in batch])


def _parts(
    protocol: str,
    task: Task,
    examples: Mapping[str, Sequence[Example]],
    batcher: Batcher,
    prepare: Prepare | None,
    params: Params,
) -> dict[str, _Part]:
    every = [example for part in examples.values() for example in part]
    sides = [example.text for example in every]
    if protocol != "classification":
        sides += [example.pair for example in every]
    texts = list(dict.fromkeys(sides))
    words = [text.split() for text in texts]
    if prepare is not None:
        prepare(params, words)
    size = params.batch_size
    vectors = np.concatenate(
        [
            np.asarray(batcher(params, words[start : start + size]), np.float64)
            for start in range(0, len(words), size)
        ]
    )  # (texts, D)
    row = {text: index for index, text in enumerate(texts)}
    parts = {}
    for name, part in examples.items():
        left = vectors[[row[example.text] for example in part]]  # (N, D)
        labels = np.array([example.label for example in part])
        if task.labels:
            labels = np.array([task.labels.index(label) for label in labels])
        right = left
        if protocol != "classification":
            right = vectors[[row[example.pair] for example in part]]
        parts[name] = _Part(_inputs(protocol, left, right), labels)
    return parts


def _inputs(protocol: str, left: Floats, right: Floats) -> Floats:
    """(N, F): what the probe sees of vectors u and v."""
    if protocol == "classification":
        return left
    both = [np.abs(left - right), left * right]
    return np.hstack([left, right, *both] if protocol == "entailment" else both)


class _Probe:
    """A kind of classifier with a penalty to choose."""

    def __init__(self, protocol: str, num_labels: int, options: ProbeOptions) -> None:
        self.best = PROTOCOLS[protocol]
        self.num_labels = num_labels
        self.options = options

    def score(self, part: _Part, predict: Callable[[Floats], Any]) -> Metrics:
        predicted = predict(part.inputs)
        if not self.num_labels:
            return regression_metrics(part.labels, predicted)
        return classification_metrics(part.labels, predicted, self.num_labels)

    def folds(self, part: _Part, count: int) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Rows to train on and rows that are held out, with the classes' shares in each."""
        selection = require("sklearn.model_selection", "train", "probing")
        counts = (
            Counter(part.labels.tolist()) if self.num_labels else Counter([0] * len(part.labels))
        )
        fewest = min(counts.values())
        if fewest < count:
            raise InputError(
                f"a class has only {fewest} examples",
                f"at least one for each of {count} folds",
                "use fewer folds or more data",
            )
        kind = selection.StratifiedKFold if self.num_labels else selection.KFold
        splitter = kind(count, shuffle=True, random_state=self.options.seed)
        yield from splitter.split(part.inputs, part.labels)

    def fit_best(self, train: _Part, validation: _Part | None) -> Callable[[Floats], Any]:
        """Fits with the penalty that is best on validation data or folds."""
        if validation is not None:
            pairs = [(train, validation)]
        else:
            folds = self.folds(train, INNER_FOLDS)
            pairs = [(train.take(rest), train.take(held)) for rest, held in folds]
        scores = {
            strength: sum(
                self.score(held, self.fit(rest, strength))[self.best] for rest, held in pairs
            )
            for strength in STRENGTHS
        }
        return self.fit(train, max(scores, key=lambda strength: scores[strength]))

    def fit(self, train: _Part, strength: float) -> Callable[[Floats], Any]:
        """Fits; the strength is scikit-learn's C."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an optimizer that would go on a little longer
            if self.options.classifier == "mlp":
                return self._fit_mlp(train, strength)
            linear = require("sklearn.linear_model", "train", "probing")
            model = linear.LogisticRegression(C=strength, max_iter=500)
            if self.num_labels:
                predict: Callable[[Floats], Any] = model.fit(train.inputs, train.labels).predict
                return predict
            # A score between two levels is a mixture of both (Tai et al. 2015, section 4.2), which
            # the cross-entropy sees as two examples with the shares as their weights.
            low = np.floor(train.labels)
            share = np.concatenate([low + 1 - train.labels, train.labels - low])
            rows = np.flatnonzero(share)  # a whole number is one level
            model.fit(
                np.vstack([train.inputs, train.inputs])[rows],
                np.concatenate([low, low + 1])[rows],
                sample_weight=share[rows],
            )
            return lambda inputs: model.predict_proba(inputs) @ model.classes_

    def _fit_mlp(self, train: _Part, strength: float) -> Callable[[Floats], Any]:
        network = require("sklearn.neural_network", "train", "probing")
        kind = network.MLPClassifier if self.num_labels else network.MLPRegressor
        model = kind(
            hidden_layer_sizes=(self.options.hidden,),
            alpha=1e-4 / strength,
            batch_size=min(64, len(train.labels)),
            # Early stopping holds back a tenth, which needs an example of each class.
            early_stopping=len(train.labels) >= 10 * max(self.num_labels, 2),
            random_state=self.options.seed,
        )
        predict: Callable[[Floats], Any] = model.fit(train.inputs, train.labels).predict
        return predict
