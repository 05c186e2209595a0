"""SentEval (Conneau and Kiela 2018, https://arxiv.org/abs/1803.05449) for any encoder.

Its tasks are read from its own files, follow its protocols, and are checked before any computation.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hf_bert_impl.errors import InputError
from hf_bert_impl.extras import require
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
from hf_bert_impl.tasks.senteval_files import TASKS, Examples, SimilarityTask
from hf_bert_impl.tasks.sts import StsFile, evaluate_sts

#: Possible places of the tasks below the user's folder.
PLACES = ("", "downstream", "data/downstream", "senteval/downstream")
#: SentEval's longer names.
LONG_NAMES = {
    "STSBENCHMARK": "STS-B",
    "SICKRELATEDNESS": "SICK-R",
    "SICKENTAILMENT": "SICK-E",
}


@dataclasses.dataclass(frozen=True)
class SentEvalData:
    """The data of a task: examples by "train", "validation" and "test", or files of similarity."""

    name: str
    #: One of `PROTOCOLS`, or "similarity".
    protocol: str
    examples: Examples
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
        folder: SentEval's folder, its `data`, `downstream`, or a folder with `downstream`.
        tasks: Names as in `TASKS` or as SentEval has them; None for all present tasks.
        options: How they will be probed.

    Raises:
        InputError: The folder, a task or a file is missing or unreadable, or a class has too few
            examples.
    """
    given = Path(folder).expanduser()
    names = None if tasks is None else task_names(tasks)
    places = [given / place for place in PLACES]
    best = max(places, key=lambda place: len(_present(place)))  # the first of equals
    present = _present(best)
    if not present:
        folders = dict.fromkeys(task.folder for task in TASKS.values())
        missing = f"there is no folder {given}"
        problem = f"{given} has no task of SentEval" if given.is_dir() else missing
        raise InputError(
            f"{problem}. Name a folder with some of {', '.join(folders)}, or with `downstream`. "
            "SentEval's get_transfer_data.bash downloads the data."
        )
    for name in names or ():
        if name not in present:
            raise InputError(
                f"there is no folder {best / TASKS[name].folder} for {name}. Leave the task out, "
                f"or get its data. Present: {', '.join(present)}."
            )
    options = options or ProbeOptions()
    return [_read(name, best, options) for name in names or present]


def task_names(names: str | Iterable[str]) -> list[str]:
    """The names as `TASKS` has them, in its order, each once.

    Args:
        names: In any case, with or without hyphens, as SST-2 or STSBenchmark; commas may join them.

    Raises:
        InputError: A task is unknown, or no name is given.
    """
    known = {_plain(name): name for name in TASKS} | LONG_NAMES
    joined = [names] if isinstance(names, str) else names
    given = [name.strip() for some in joined for name in some.split(",")]
    for name in given:
        if _plain(name) not in known:
            raise InputError(f"`tasks` has {name!r}. Use some of {', '.join(TASKS)}.", "tasks")
    if not given:
        raise InputError(f"`tasks` is empty. Use some of {', '.join(TASKS)}.", "tasks")
    chosen = {known[_plain(name)] for name in given}
    return [name for name in TASKS if name in chosen]


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


def _plain(name: str) -> str:
    return re.sub(r"[^A-Z0-9]", "", name.upper())


def _present(place: Path) -> list[str]:
    return [name for name, task in TASKS.items() if (place / task.folder).is_dir()]


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
