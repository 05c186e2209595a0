"""SentEval (Conneau and Kiela 2018, https://arxiv.org/abs/1803.05449) for any encoder.

Its tasks are read from its own files, follow its protocols, and are checked before any computation.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hf_bert_impl.errors import InputError
from hf_bert_impl.extras import require
from hf_bert_impl.tasks.base import Example
from hf_bert_impl.tasks.metrics import Metrics
from hf_bert_impl.tasks.probe_options import PROTOCOLS, ProbeOptions
from hf_bert_impl.tasks.probes import (
    Batcher,
    Params,
    Prepare,
    Progress,
    check_probe,
    embed_texts,
    run_probe,
)
from hf_bert_impl.tasks.registry import make_task
from hf_bert_impl.tasks.senteval_files import TASKS, SimilarityTask, find_tasks
from hf_bert_impl.tasks.sts import StsFile, evaluate_sts


@dataclasses.dataclass(frozen=True)
class SentEvalData:
    """The data of a task: examples by "train", "validation" and "test", or files of similarity."""

    name: str
    #: One of `PROTOCOLS`, or "similarity".
    protocol: str
    examples: dict[str, list[Example]]
    files: list[StsFile]


@dataclasses.dataclass(frozen=True)
class SentEvalResult:
    """A task's scores, times 100 except the mean squared error, and deviations over folds.

    `examples` are counts by part. `metrics` names the scores of the literature, the main one first.
    """

    name: str
    protocol: str
    examples: dict[str, int]
    metrics: tuple[str, ...]
    scores: Metrics
    deviations: Metrics | None

    @property
    def score(self) -> float:
        """The main score."""
        return self.scores[self.metrics[0]]


def read_senteval(
    folder: str | Path,
    tasks: str | Iterable[str] | None = None,
    options: ProbeOptions | None = None,
) -> list[SentEvalData]:
    """Finds and reads tasks in SentEval's own layout, in the order of `TASKS`.

    Args:
        folder: As of `find_tasks`, like `tasks`.
        tasks: As there.
        options: How they will be probed.

    Raises:
        InputError: The folder, a task or a file is missing or unreadable, or a class has too few
            examples.
    """
    options = options or ProbeOptions()
    return [_read(name, place, options) for name, place in find_tasks(folder, tasks).items()]


def run_senteval(
    data: Iterable[SentEvalData],
    batcher: Batcher,
    prepare: Prepare | None = None,
    options: ProbeOptions | None = None,
    progress: Callable[[str, str, float], None] | None = None,
) -> list[SentEvalResult]:
    """Scores an encoder on tasks.

    Args:
        data: From `read_senteval`.
        batcher: Turns texts, as lists of words, into vectors; `encoder_batcher` makes one.
        prepare: Called with all texts of a task before its first batch.
        options: How to probe.
        progress: Called with the task's name, the current work, and the finished share.

    Raises:
        InputError: The encoder gives no finite vector for a text.
    """
    require("sklearn", "train", "SentEval")
    options = options or ProbeOptions()
    results = []
    for task in data:

        def report(what: str, share: float, name: str = task.name) -> None:
            if progress is not None:
                progress(name, what, share)

        score = _compare if task.files else _probe
        results.append(score(task, batcher, prepare, options, report))
    return results


def means(results: Iterable[SentEvalResult]) -> dict[str, float]:
    """The mean of the accuracies and the mean of the correlations."""
    groups: dict[str, list[float]] = {}
    for result in results:
        is_accuracy = PROTOCOLS.get(result.protocol) == "accuracy"
        groups.setdefault("accuracy" if is_accuracy else "correlation", []).append(result.score)
    return {kind: statistics.fmean(scores) for kind, scores in groups.items()}


def _read(name: str, place: Path, options: ProbeOptions) -> SentEvalData:
    task = TASKS[name]
    if isinstance(task, SimilarityTask):
        return SentEvalData(name, "similarity", {}, task.read(place))
    data = SentEvalData(name, task.protocol, task.read(place), [])
    try:
        check_probe(_task(data), data.examples, options)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    return data


def _task(data: SentEvalData) -> Any:
    """The task with its labels."""
    task = make_task("regression" if data.protocol == "relatedness" else "classification")
    task.learn_labels(data.examples)
    return task


def _probe(
    data: SentEvalData,
    batcher: Batcher,
    prepare: Prepare | None,
    options: ProbeOptions,
    report: Progress,
) -> SentEvalResult:
    arguments = (data.protocol, _task(data), data.examples, batcher, prepare, options, report)
    result = run_probe(*arguments, name=data.name)
    metrics: tuple[str, ...] = ("accuracy", "f1") if data.name == "MRPC" else ("accuracy",)
    if data.protocol == "relatedness":
        metrics = ("pearson", "spearman")
    scores = _percent(result.scores)
    deviations = None if result.deviations is None else _percent(result.deviations)
    return SentEvalResult(data.name, data.protocol, result.examples, metrics, scores, deviations)


def _percent(scores: Metrics) -> Metrics:
    return {name: score if name == "mse" else 100 * score for name, score in scores.items()}


def _compare(
    data: SentEvalData,
    batcher: Batcher,
    prepare: Prepare | None,
    options: ProbeOptions,
    report: Progress,
) -> SentEvalResult:
    params = Params(batch_size=options.batch_size, seed=options.seed, current_task=data.name)

    def encode(texts: list[str]) -> Any:
        vectors = embed_texts(texts, batcher, prepare, params, report)
        return np.stack([vectors[text] for text in texts])

    total, by_file = evaluate_sts(encode, data.files)
    pairs = [score.pairs for score in by_file.values()]
    scores = {}
    for name in ("pearson", "spearman"):
        values = [getattr(score, name) for score in by_file.values()]
        scores[f"{name}_mean"] = statistics.fmean(values)
        scores[f"{name}_weighted_mean"] = statistics.fmean(values, pairs)
        scores[f"{name}_all"] = getattr(total, name)
        scores |= {f"{name}_{file}": value for file, value in zip(by_file, values, strict=True)}
    counts = {name: score.pairs for name, score in by_file.items()}
    metrics = ("pearson_mean", "spearman_mean")
    return SentEvalResult(data.name, data.protocol, counts, metrics, scores, None)
