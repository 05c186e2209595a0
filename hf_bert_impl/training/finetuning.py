"""Fine-tuning: a pre-trained BERT and labelled data give a model for one task, with its scores.

transformers' Trainer trains; this module reads, prepares, selects and writes. The output folder
appears complete or stays absent.
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
from hf_bert_impl.training.finetuning_output import (
    MODEL,
    check_new,
    finish,
    growing,
    write_pictures,
)
from hf_bert_impl.training.finetuning_trainer import build_trainer, class_weights, predict_together
from hf_bert_impl.training.launch import begin, has_begun
from hf_bert_impl.training.opening import open_weights
from hf_bert_impl.training.processes import check_shared, join


@dataclasses.dataclass(frozen=True)
class Sources:
    """The data: files, or splits of the task's data set."""

    train: str
    validation: str | None = None
    test: str | None = None

    def named(self) -> dict[str, str]:
        """The given sources by part."""
        every = {"train": self.train, "validation": self.validation, "test": self.test}
        return {part: source for part, source in every.items() if source is not None}


def finetune(
    task: Task,
    sources: Sources,
    options: FinetuningOptions,
    callbacks: Sequence[TrainerCallback] = (),
) -> dict[str, Any]:
    """Fine-tunes a model and writes it with its tokenizer, scores, pictures and card.

    Args:
        task: The task, with its columns.
        sources: Its data.
        options: How to train.
        callbacks: Further callbacks of the Trainer, such as `reporting.Progress`.

    Returns:
        The content of `metrics.json`: `task`, `model`, `labels`, the scores of `validation` and
        `test`, and `training` (settings, time and the scores of each epoch). Several seeds add
        `seeds` and `spread`.

    Raises:
        ValueError, OSError: An input cannot be used, or another run writes the same folder, before
            training begins. Or the disk is full or the loss is not finite, and the best checkpoint
            remains.
    """
    for module in ("sklearn", "matplotlib"):
        require(module, "train", "fine-tuning")
    if options.early_stopping is not None and sources.validation is None:
        raise InputError(
            "`early_stopping` needs validation data. Name a validation file, or leave it out."
        )
    state = join()
    if any(map(parse_flag_from_env, ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"))):
        raise InputError(
            "fine-tuning was launched with FSDP or DeepSpeed, and supports DDP only. Leave them "
            "out of the launcher's options."
        )
    # After a restart by the launcher, existing files are its own.
    overwrite = options.overwrite or has_begun(options.output)
    with contextlib.ExitStack() as held:
        if state.is_main_process:
            held.enter_context(output_lock(options.output.resolve()))
            dataset = [] if task.dataset is None else [task.dataset.partition(":")[0]]
            inputs = [options.model, *dataset, *sources.named().values()]
            check_new(options.output, overwrite, inputs)
        tokenizer = load_tokenizer(options.model, {})
        config = hf_bert_impl.BertConfig.from_pretrained(options.model)
        named = sources.named()
        splits, max_length = prepare(task, named, tokenizer, config, options.max_length)
        weights = class_weights(options.class_weights, task, splits["train"])
        if state.is_main_process:
            begin(options.output)
        work = held.enter_context(growing(options.output, overwrite, state.is_main_process))
        check_shared(state, work)
        started = time.perf_counter()
        scores: dict[int, dict[str, Metrics]] = {}  # by seed and part
        training: dict[str, Any] = {}  # of the best seed
        for seed in options.seeds:
            set_seed(seed)  # before loading, which draws the weights of a new head
            cls = getattr(hf_bert_impl, task.head)
            model, new = open_weights(cls, options.model, **task.config())
            if "classifier.bias" in new:
                task.start_head(model, splits["train"])
            place = work / f"seed-{seed}"
            arguments = (model, tokenizer, task, splits, options, seed, place, weights)
            trainer = build_trainer(*arguments, callbacks)
            trainer.train()
            outputs = _predict(task, trainer.model, splits, tokenizer, state)
            scores[seed] = {part: task.score(splits[part], rows) for part, rows in outputs.items()}
            history = trainer.state.log_history
            if not training or (
                "validation" in outputs
                and task.is_better(
                    scores[seed]["validation"], scores[training["seed"]]["validation"]
                )
            ):
                training = {"seed": seed, "best_epoch": trainer.best_epoch, "history": history}
                trainer.save_best(work / MODEL)
                if state.is_main_process:
                    write_pictures(work / MODEL, task, splits, outputs, history)
            state.wait_for_everyone()
            if state.is_main_process:
                shutil.rmtree(place, ignore_errors=True)
        training["max_length"] = max_length
        training["examples"] = {part: len(split.examples) for part, split in splits.items()}
        training["seconds"] = round(time.perf_counter() - started, 1)
        report = _report(task, options, scores, training)
        if state.is_main_process:
            finish(options.output, report)
    return report


def prepare(
    task: Task,
    named: Mapping[str, str],
    tokenizer: Any,
    config: Any,
    max_length: int | None,
) -> tuple[dict[str, Split], int]:
    """Reads and tokenizes the data, and sets the task's labels.

    Args:
        task: The task.
        named: The sources by part, with "train".
        tokenizer: The model's tokenizer.
        config: The checkpoint's config.
        max_length: As in the options.

    Returns:
        The splits by part, and the length at which sequences are cut.

    Raises:
        ValueError: The data cannot be used.
    """
    length = sequence_length(task, tokenizer, config, max_length)
    examples = {part: task.read(source) for part, source in named.items()}
    known = [config.id2label[number] for number in sorted(config.id2label)]
    task.learn_labels(examples, known)
    splits = {
        part: Split(rows, task.features(rows, tokenizer, length)) for part, rows in examples.items()
    }
    return splits, length


def _predict(
    task: Task, model: Any, splits: Mapping[str, Split], tokenizer: Any, state: PartialState
) -> dict[str, list[Any]]:
    """The outputs on validation and test data, after tuning on the validation data."""
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
    scores: dict[int, dict[str, Metrics]],
    training: dict[str, Any],
) -> dict[str, Any]:
    settings = dataclasses.asdict(options)
    report: dict[str, Any] = {"task": task.name, "model": settings.pop("model")}
    for name in ("output", "overwrite", "seeds"):
        del settings[name]
    if task.labels:
        report["labels"] = task.labels
    best = scores[training["seed"]]
    report |= best
    history = [
        {name.removeprefix("eval_"): value for name, value in entry.items()}
        for entry in training["history"]
        if f"eval_{task.best_metric}" in entry
    ]
    report["training"] = settings | training | {"history": history}
    if len(scores) > 1:
        report["seeds"] = scores
        report["spread"] = {
            part: {name: spread([run[part][name] for run in scores.values()]) for name in names}
            for part, names in best.items()
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
