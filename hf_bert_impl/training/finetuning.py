"""Fine-tuning: a pre-trained BERT and labelled data in, a model for one task with its figures out.

The engine is the Trainer of transformers; what is here reads, prepares, chooses and writes. The
output appears complete or not at all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from accelerate import PartialState
from accelerate.utils import parse_flag_from_env
from transformers import TrainerCallback, set_seed

import hf_bert_impl
from hf_bert_impl.errors import InputError
from hf_bert_impl.extras import require
from hf_bert_impl.files.lock import output_lock
from hf_bert_impl.inference.loading import load_tokenizer
from hf_bert_impl.tasks.base import Split, Task, sequence_length
from hf_bert_impl.tasks.metrics import Metrics
from hf_bert_impl.training.finetuning_options import FinetuningOptions
from hf_bert_impl.training.finetuning_output import OutputFolder, write_pictures
from hf_bert_impl.training.finetuning_trainer import build_trainer, class_weights, predict_together
from hf_bert_impl.training.launch import begin, has_begun
from hf_bert_impl.training.opening import open_weights
from hf_bert_impl.training.processes import check_shared, join


@dataclasses.dataclass(frozen=True)
class Sources:
    """Where the data are: files, or splits of the task's data set."""

    train: str
    validation: str | None = None
    test: str | None = None

    def named(self) -> dict[str, str]:
        """The sources that were given, by the name of their part."""
        every = {"train": self.train, "validation": self.validation, "test": self.test}
        return {part: source for part, source in every.items() if source is not None}


@dataclasses.dataclass
class _Run:
    """What one seed gave."""

    seed: int
    scores: dict[str, Metrics]
    history: list[dict[str, Any]]
    best_epoch: float | None


def finetune(
    task: Task,
    sources: Sources,
    options: FinetuningOptions,
    callbacks: Sequence[TrainerCallback] = (),
) -> dict[str, Any]:
    """Fine-tunes a model and writes it with its tokenizer, figures, pictures and card.

    Args:
        task: The task, with its columns.
        sources: Its data.
        options: How to train.
        callbacks: More callbacks of the Trainer, such as `reporting.Progress`.

    Returns:
        What `metrics.json` holds: `task`, `model`, `labels`; `validation` and `test`, the metrics
        of each that there is; `training` (settings, time and the scores of each epoch); and for
        several seeds `seeds` and `spread`.

    Raises:
        ValueError, OSError: Input that cannot be used, or another run that writes the same folder,
            in one line, before anything is trained; or a disk that is full, or a loss that is no
            finite number any more, after which the best checkpoint so far is still there.
    """
    for module in ("sklearn", "matplotlib"):
        require(module, "train", "fine-tuning")
    if options.early_stopping is not None and sources.validation is None:
        raise InputError("early stopping has no validation data", "some to stop by", "name a file")
    state = join()
    if parse_flag_from_env("ACCELERATE_USE_FSDP") or parse_flag_from_env(
        "ACCELERATE_USE_DEEPSPEED"
    ):
        raise InputError(
            "fine-tuning was launched with FSDP or DeepSpeed",
            "a whole model in each process (DDP)",
            "leave them out of the launcher's options",
        )
    # Where the launcher starts lost processes anew, what is there was left by them.
    overwrite = options.overwrite or has_begun(options.output)
    folder = OutputFolder(options.output, overwrite, state.is_main_process)
    with contextlib.ExitStack() as held:
        if state.is_main_process:
            held.enter_context(output_lock(folder.folder))
            dataset = [] if task.dataset is None else [task.dataset.partition(":")[0]]
            folder.check([options.model, *dataset, *sources.named().values()])
        return _finetune(task, sources, options, callbacks, folder, state)


def _finetune(
    task: Task,
    sources: Sources,
    options: FinetuningOptions,
    callbacks: Sequence[TrainerCallback],
    folder: OutputFolder,
    state: PartialState,
) -> dict[str, Any]:
    tokenizer = load_tokenizer(options.model, {})
    config = hf_bert_impl.BertConfig.from_pretrained(options.model)
    named = sources.named()
    splits, max_length = prepare(task, named, tokenizer, config, options.max_length)
    weights = class_weights(options.class_weights, task, splits["train"])

    started = time.perf_counter()
    runs: list[_Run] = []
    best: _Run | None = None
    if state.is_main_process:
        begin(options.output)
    with folder as work:
        check_shared(state, work)
        for seed in options.seeds:
            set_seed(seed)  # before loading, where the weights of a new head are drawn
            place = work / f"seed-{seed}"
            model = load_for_task(options.model, task, splits["train"])
            trainer = build_trainer(
                *(model, tokenizer, task, splits, options, seed, place / "checkpoints", weights),
                callbacks,
            )
            trainer.train()
            outputs = _predict(task, trainer.model, splits, tokenizer, state)
            scores = {part: task.score(splits[part], given) for part, given in outputs.items()}
            run = _Run(seed, scores, trainer.state.log_history, trainer.best_epoch)
            runs.append(run)
            chosen = best is None or (
                "validation" in scores
                and task.is_better(scores["validation"], best.scores["validation"])
            )
            if chosen:
                best = run
                trainer.save_best(place / "model")
            state.wait_for_everyone()
            if state.is_main_process and chosen:
                folder.keep(place / "model")
                write_pictures(place / "model", task, splits, outputs, run.history)
                shutil.rmtree(place / "checkpoints", ignore_errors=True)
            elif state.is_main_process:
                shutil.rmtree(place)
        assert best is not None
        seconds = round(time.perf_counter() - started, 1)
        report = _report(task, options, splits, runs, best, max_length, seconds)
        if state.is_main_process:
            folder.finish(report)
    return report


def prepare(
    task: Task,
    named: Mapping[str, str],
    tokenizer: Any,
    config: Any,
    max_length: int | None,
) -> tuple[dict[str, Split], int]:
    """Reads and tokenizes data to train on, and sets the task's labels.

    Args:
        task: The task.
        named: The sources, "train" among them.
        tokenizer: The model's tokenizer.
        config: The config of the checkpoint to begin with.
        max_length: As in the options.

    Returns:
        The splits by name, and the length at which sequences are cut.

    Raises:
        ValueError: The data cannot be used.
    """
    length = sequence_length(task, tokenizer, config, max_length)
    examples = {part: task.read(source) for part, source in named.items()}
    known = [config.id2label[number] for number in sorted(config.id2label)]
    task.learn_labels(examples["train"], known)
    for part in examples:
        task.check_labels(examples[part])
    splits = {
        part: Split(rows, task.features(rows, tokenizer, length)) for part, rows in examples.items()
    }
    return splits, length


def load_for_task(path: str, task: Task, train: Split) -> Any:
    """Loads a checkpoint into the task's class; a head that does not fit is drawn anew.

    Args:
        path: The checkpoint.
        task: The task.
        train: The training data, by which a new head may start.

    Raises:
        ValueError: Weights other than the head's are missing or have another size, or weights are
            not finite.
    """
    model, new = open_weights(getattr(hf_bert_impl, task.head), path, **task.config())
    if "classifier.bias" in new:
        task.start_head(model, train)
    return model


def _predict(
    task: Task, model: Any, splits: Mapping[str, Split], tokenizer: Any, state: PartialState
) -> dict[str, list[Any]]:
    """The outputs of validation and test data, after tuning on the first."""
    outputs = {}
    for part, split in splits.items():
        if part != "train":
            outputs[part] = predict_together(task, model, split, tokenizer, state)
        if part == "validation":
            task.tune(model, split, outputs[part])
    return outputs


def _report(
    task: Task,
    options: FinetuningOptions,
    splits: Mapping[str, Split],
    runs: list[_Run],
    best: _Run,
    max_length: int,
    seconds: float,
) -> dict[str, Any]:
    settings = {
        name: value
        for name, value in dataclasses.asdict(options).items()
        if name not in ("model", "output", "overwrite", "seeds")
    }
    report: dict[str, Any] = {"task": task.name, "model": options.model}
    if task.labels:
        report["labels"] = task.labels
    report |= best.scores
    report["training"] = settings | {
        "max_length": max_length,
        "examples": {part: len(split.examples) for part, split in splits.items()},
        "seed": best.seed,
        "best_epoch": best.best_epoch,
        "seconds": seconds,
        "history": [
            {name.removeprefix("eval_"): value for name, value in entry.items()}
            for entry in best.history
            if f"eval_{task.best_metric}" in entry
        ],
    }
    if len(runs) > 1:
        report["seeds"] = {run.seed: run.scores for run in runs}
        report["spread"] = {
            part: {
                name: spread([run.scores[part][name] for run in runs]) for name in best.scores[part]
            }
            for part in best.scores
        }
    return report


def spread(values: Sequence[float]) -> dict[str, float]:
    """`mean`, sample standard deviation `std`, `min` and `max` of two values or more."""
    return {
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values),
        "min": min(values),
        "max": max(values),
    }
