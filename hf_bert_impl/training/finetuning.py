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
    """Where the data are: files, or splits of the task's data set."""

    train: str
    validation: str | None = None
    test: str | None = None

    def named(self) -> dict[str, str]:
        """The sources that were given, by the name of their part."""
        every = {"train": self.train, "validation": self.validation, "test": self.test}
        return {part: source for part, source in every.items() if source is not None}


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
    if any(map(parse_flag_from_env, ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"))):
        raise InputError(
            "fine-tuning was launched with FSDP or DeepSpeed",
            "a whole model in each process (DDP)",
            "leave them out of the launcher's options",
        )
    # Where the launcher starts lost processes anew, what is there was left by them.
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
            set_seed(seed)  # before loading, where the weights of a new head are drawn
            model = load_for_task(options.model, task, splits["train"])
            place = work / f"seed-{seed}"
            trainer = build_trainer(
                *(model, tokenizer, task, splits, options, seed, place, weights), callbacks
            )
            trainer.train()
            outputs = _predict(task, trainer.model, splits, tokenizer, state)
            found = {part: task.score(splits[part], given) for part, given in outputs.items()}
            scores[seed] = found
            history = trainer.state.log_history
            if not training or (
                "validation" in found
                and task.is_better(found["validation"], scores[training["seed"]]["validation"])
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
