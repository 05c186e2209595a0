"""Probes: the accuracy of a simple classifier on fixed sentence vectors.

Protocols and interface are SentEval's (Conneau and Kiela 2018, https://arxiv.org/abs/1803.05449):
`prepare` gets all texts once, and `batcher` turns a batch of texts into vectors. The data are the
user's files; `senteval.py` reads SentEval's. The classifier is scikit-learn's logistic regression,
as in SentEval's paper.

Notation: N examples, D numbers of a vector, F numbers of a probe's input.
"""

from __future__ import annotations

import dataclasses
import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_bert_impl.errors import InputError, check_choice
from hf_bert_impl.extras import require
from hf_bert_impl.tasks.base import Columns, Example, Task
from hf_bert_impl.tasks.metrics import Metrics, classification_metrics, regression_metrics
from hf_bert_impl.tasks.probe_options import PROTOCOLS, ProbeOptions
from hf_bert_impl.tasks.registry import make_task

Floats = NDArray[np.float32]
#: From inputs (N, F) to labels or scores (N,).
Predict = Callable[[Floats], NDArray[Any]]

#: Values of scikit-learn's C, the inverse of the penalty.
STRENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
#: The share of embedding in a probe's progress.
EMBEDDING_SHARE = 0.5


class Params(dict[str, Any]):
    """The argument of `prepare` and `batcher`: a dict with attributes, None if missing."""

    __getattr__ = dict.get
    __setattr__ = dict.__setitem__


#: Texts as lists of words to (texts, D) vectors.
Batcher = Callable[[Params, list[list[str]]], Any]
#: Called with all texts of a task before the first batch.
Prepare = Callable[[Params, list[list[str]]], Any]
#: Called with the current work and the finished share.
Progress = Callable[[str, float], None]


@dataclasses.dataclass(frozen=True)
class ProbeResult:
    """Scores on the test data, or their mean and standard deviation over folds.

    `examples` are counts by part of the data.
    """

    scores: Metrics
    deviations: Metrics | None
    examples: dict[str, int]


def read_probe(
    protocol: str, named: Mapping[str, str], columns: Columns, dataset: str | None = None
) -> tuple[Task, dict[str, list[Example]]]:
    """Reads the data of a probe.

    Args:
        protocol: One of `PROTOCOLS`.
        named: Files (or splits) by the names "train", "validation" and "test".
        columns: All protocols but "classification" need a pair.
        dataset: A `datasets` id instead of files.

    Returns:
        The task with its labels, and the examples by name.

    Raises:
        ValueError: The protocol is unknown, or the data cannot be used.
    """
    check_choice("protocol", protocol, PROTOCOLS)
    if (columns.pair is None) != (protocol == "classification"):
        needs = "no second text" if protocol == "classification" else "a second text"
        raise InputError(
            f"the column of the second text is {columns.pair}, and {protocol} takes {needs}. "
            "Change the text-pair column or the protocol."
        )
    kind = "regression" if protocol == "relatedness" else "classification"
    task = make_task(kind, columns, dataset)
    examples = {name: task.read(source) for name, source in named.items()}
    task.learn_labels(examples)
    return task, examples


def check_probe(
    task: Task, examples: Mapping[str, Sequence[Example]], options: ProbeOptions
) -> None:
    """Raises InputError if there is too little data to train and test, before any computation."""
    if "validation" in examples and "test" not in examples:
        raise InputError(
            "there are validation data but no test data. Name test data too, or neither for "
            "cross-validation."
        )
    # Each fold needs every class. Folds that only choose the penalty can be fewer.
    least = 1 if "validation" in examples else 2 if "test" in examples else options.folds
    train = examples["train"]
    counts = Counter(example.label for example in train) if task.labels else {"": len(train)}
    name, fewest = min(counts.items(), key=lambda item: item[1])
    if fewest < least:
        what = f"class {name!r} has" if task.labels else "there are"
        count = f"only {fewest} example{'s' * (fewest != 1)}"
        raise InputError(
            f"{what} {count} to train on, and each of {least} folds needs one. "
            f"{'Use fewer folds or more data.' if least > 2 else 'Use more data.'}"
        )
    if not task.labels and len({example.label for example in train}) == 1:
        raise InputError(
            f"every score to train on is {train[0].label}. Use data with different scores."
        )


def run_probe(
    protocol: str,
    task: Task,
    examples: Mapping[str, Sequence[Example]],
    batcher: Batcher,
    prepare: Prepare | None = None,
    options: ProbeOptions | None = None,
    progress: Progress | None = None,
    name: str | None = None,
) -> ProbeResult:
    """Trains and tests a probe.

    With test data it is trained on the training data. The validation data choose the penalty, or
    folds of the training data. Without test data the training data are cross-validated, and inner
    folds choose the penalty.

    Args:
        protocol: One of `PROTOCOLS`.
        task: From `read_probe`.
        examples: From `read_probe`.
        batcher: Turns texts, as lists of words, into vectors.
        prepare: Called first, with all texts.
        options: How to probe.
        progress: Called during the work.
        name: `params.current_task`; None for the protocol.

    Raises:
        ValueError: A class has fewer examples than there are folds, or a vector is not finite.
    """
    options = options or ProbeOptions()
    require("sklearn", "train", "probing")
    check_probe(task, examples, options)
    params = Params(batch_size=options.batch_size, seed=options.seed, current_task=name or protocol)
    report = progress or (lambda what, share: None)
    parts = _parts(protocol, task, examples, batcher, prepare, params, report)
    counts = {name: len(part) for name, part in examples.items()}
    probe = Probe(protocol, len(task.labels), options)
    train = parts["train"]
    if "test" in parts:
        report("classifier", EMBEDDING_SHARE)
        predict = probe.fit_best(train, parts.get("validation"))
        return ProbeResult(probe.score(parts["test"], predict), None, counts)
    scores: list[Metrics] = []
    for rest, held in probe.folds(train, options.folds):
        share = EMBEDDING_SHARE + (1 - EMBEDDING_SHARE) * len(scores) / options.folds
        report(f"fold {len(scores) + 1} of {options.folds}", share)
        scores.append(probe.score(held, probe.fit_best(rest, None)))
    columns = {name: [fold[name] for fold in scores] for name in scores[0]}
    means = {name: statistics.fmean(values) for name, values in columns.items()}
    deviations = {name: statistics.stdev(values) for name, values in columns.items()}
    return ProbeResult(means, deviations, counts)


@dataclasses.dataclass
class Part:
    """Inputs (N, F) of a probe and their labels."""

    inputs: Floats
    labels: NDArray[Any]

    def take(self, rows: NDArray[np.intp]) -> Part:
        return Part(self.inputs[rows], self.labels[rows])


@dataclasses.dataclass(frozen=True)
class Probe:
    """Logistic regression with a chosen penalty."""

    protocol: str
    num_labels: int
    options: ProbeOptions

    def score(self, part: Part, predict: Predict) -> Metrics:
        predicted = predict(part.inputs)
        if not self.num_labels:
            return regression_metrics(part.labels, predicted)
        return classification_metrics(part.labels, predicted, self.num_labels)

    def folds(self, part: Part, count: int) -> Iterator[tuple[Part, Part]]:
        """The training and held-out parts of each fold, stratified by class."""
        selection = require("sklearn.model_selection", "train", "probing")
        kind = selection.StratifiedKFold if self.num_labels else selection.KFold
        splitter = kind(count, shuffle=True, random_state=self.options.seed)
        for rest, held in splitter.split(part.inputs, part.labels):
            yield part.take(rest), part.take(held)

    def fit_best(self, train: Part, validation: Part | None) -> Predict:
        """Fits with the best penalty on validation data or folds, the first if equal."""
        if validation is not None:
            pairs = iter([(train, validation)])
        else:
            classes = np.unique(train.labels, return_counts=True)[1]
            fewest = min(classes) if self.num_labels else len(train.labels)
            pairs = self.folds(train, int(min(self.options.folds, fewest)))
        totals, best = np.zeros(len(STRENGTHS)), PROTOCOLS[self.protocol]
        # One thread: steps are too short for more.
        with require("threadpoolctl", "train", "probing").threadpool_limits(1):
            for rest, held in pairs:
                fits = self._fit(rest, STRENGTHS)
                totals += [self.score(held, predict)[best] for predict in fits]
            return next(self._fit(train, [STRENGTHS[totals.argmax()]]))

    def _fit(self, train: Part, strengths: Sequence[float]) -> Iterator[Predict]:
        """Fits with each penalty. Use a fit before requesting the next."""
        linear = require("sklearn.linear_model", "train", "probing")
        # The optimum of the last penalty is near.
        model = linear.LogisticRegression(max_iter=500, warm_start=True)
        inputs, labels, shares = train.inputs, train.labels, None
        if not self.num_labels:
            rows, labels, shares = _between_levels(train.labels)
            inputs = inputs[rows]
        for strength in strengths:
            with warnings.catch_warnings(action="ignore"):  # the optimizer stopped at max_iter
                model.set_params(C=strength).fit(inputs, labels, sample_weight=shares)
            if self.num_labels:
                yield model.predict
            else:
                yield lambda inputs: model.predict_proba(inputs) @ model.classes_


def _between_levels(
    scores: NDArray[np.float64],
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
    """Scores as mixtures of the two nearest levels (Tai et al. 2015, section 4.2).

    For the cross-entropy a score is two examples, weighted by its shares; a whole number is one.

    Returns:
        The row, the level and the weight of each of these examples.
    """
    low = np.floor(scores)
    shares = np.concatenate([low + 1 - scores, scores - low])
    levels = np.concatenate([low, low + 1]).astype(np.intp)
    nonzero = np.flatnonzero(shares)
    return nonzero % len(scores), levels[nonzero], shares[nonzero]


def encoder_batcher(encode: Callable[[list[str]], Any]) -> Batcher:
    """A batcher from a function of texts to vectors, such as `TextEncoder.encode`."""
    return lambda params, batch: encode([" ".join(words) for words in batch])


def embed_texts(
    texts: Iterable[str],
    batcher: Batcher,
    prepare: Prepare | None,
    params: Params,
    report: Progress,
) -> dict[str, Floats]:
    """The vector (D,) of each text; equal texts are computed once.

    Raises:
        InputError: A vector is not finite, or there is not one per text.
    """
    unique = list(dict.fromkeys(texts))
    words = [text.split() for text in unique]
    if prepare is not None:
        prepare(params, words)
    vectors: list[Floats] = []
    for start in range(0, len(words), params["batch_size"]):
        batch = words[start : start + params["batch_size"]]
        report(f"{start:,} of {len(words):,} texts", EMBEDDING_SHARE * start / len(words))
        rows = np.asarray(batcher(params, batch), np.float32)  # (batch, D)
        odd = "" if np.isfinite(rows).all() else ", not all of them finite"
        if rows.ndim != 2 or len(rows) != len(batch) or odd:
            raise InputError(
                f"the encoder gave numbers of shape {rows.shape} for {len(batch)} texts{odd}. "
                "Return one vector of finite numbers per text from the `batcher`."
            )
        vectors.extend(rows)
    return dict(zip(unique, vectors, strict=True))


def _parts(
    protocol: str,
    task: Task,
    examples: Mapping[str, Sequence[Example]],
    batcher: Batcher,
    prepare: Prepare | None,
    params: Params,
    report: Progress,
) -> dict[str, Part]:
    every = [example for part in examples.values() for example in part]
    is_pair = protocol != "classification"
    sides = [example.text for example in every]
    sides += [example.pair for example in every if is_pair]
    vectors = embed_texts(sides, batcher, prepare, params, report)
    parts = {}
    for name, part in examples.items():
        left = np.stack([vectors[example.text] for example in part])  # (N, D)
        right = np.stack([vectors[example.pair] for example in part]) if is_pair else left
        labels = [example.label for example in part]
        numbers = [task.labels.index(label) for label in labels] if task.labels else labels
        parts[name] = Part(_inputs(protocol, left, right), np.array(numbers))
    return parts


def _inputs(protocol: str, left: Floats, right: Floats) -> Floats:
    """(N, F) the probe's input from vectors u and v."""
    if protocol == "classification":
        return left
    both = [np.abs(left - right), left * right]
    return np.hstack([left, right, *both] if protocol == "entailment" else both)
