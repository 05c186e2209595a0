"""Fine-tuning: a pre-trained BERT and labelled data give a model for one task, with its scores.

transformers' Trainer trains; this module reads, prepares, selects and writes. The output folder
appears complete or stays absent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list, parse_flag_from_env
from transformers import TrainerCallback, set_seed

import hf_bert_impl
from hf_bert_impl.errors import InputError, InputNote
from hf_bert_impl.extras import require
from hf_bert_impl.files.lock import output_lock
from hf_bert_impl.inference.loading import load_tokenizer
from hf_bert_impl.tasks.base import Split, Task, sequence_length
from hf_bert_impl.tasks.metrics import Metrics
from hf_bert_impl.training.checkpointing import (
    SETTINGS,
    best_checkpoint,
    last_checkpoint,
    remove_leftovers,
)
from hf_bert_impl.training.data_split import read_shares, split_examples
from hf_bert_impl.training.finetuning_options import FinetuningOptions
from hf_bert_impl.training.finetuning_output import (
    check_new,
    finish,
    kept_after_errors,
    open_run,
    unfinished,
    write_pictures,
    write_results,
)
from hf_bert_impl.training.finetuning_trainer import build_trainer, class_weights, predict_together
from hf_bert_impl.training.launch import begin
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
        return {part: source for part, source in vars(self).items() if source is not None}


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
    if options.split is not None and len(sources.named()) > 1:
        raise InputError(
            "`split` takes validation and test data from the training data. Leave it out, or name "
            "no other file.",
            "split",
        )
    for name in ("early_stopping", "metric"):
        if getattr(options, name) is not None and sources.validation is options.split is None:
            raise InputError(
                f"`{name}` needs validation data. Name a validation file, or leave it out.", name
            )
    task.choose_metric(options.metric)
    state = join()
    if any(map(parse_flag_from_env, ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"))):
        raise InputError(
            "fine-tuning was launched with FSDP or DeepSpeed, and supports DDP only. Leave them "
            "out of the launcher's options."
        )
    is_main, work = state.is_main_process, unfinished(options.output)
    with contextlib.ExitStack() as held:
        if is_main:
            held.enter_context(output_lock(options.output))
            dataset = [] if task.dataset is None else [task.dataset.partition(":")[0]]
            check_new(options, [options.model, *dataset, *sources.named().values()])
        tokenizer = load_tokenizer(options.model)
        config = hf_bert_impl.BertConfig.from_pretrained(options.model)
        named = sources.named()
        splits, max_length = prepare(task, named, tokenizer, config, options)
        weights = class_weights(options.class_weights, task, splits["train"])
        settings = run_settings(task, options, splits)
        note_overlap(splits)
        if is_main:
            results = open_run(options, settings)
            begin(options.output)
        results = broadcast_object_list([results if is_main else None])[0]
        held.enter_context(kept_after_errors(work, is_main))
        check_shared(state, work / SETTINGS)
        started = time.perf_counter()
        scores: dict[str, dict[str, Metrics]] = results.setdefault("scores", {})  # by seed and part
        for seed in options.seeds:
            if str(seed) in scores:
                continue
            set_seed(seed)  # before loading, which draws the weights of a new head
            cls = getattr(hf_bert_impl, task.head)
            model, new = open_weights(cls, options.model, **task.config())
            if "classifier.bias" in new:
                task.start_head(model, splits["train"])
            place = work / f"seed-{seed}"
            if is_main:
                remove_leftovers(place)
            state.wait_for_everyone()
            arguments = (model, tokenizer, task, splits, options, seed, place, weights)
            trainer = build_trainer(*arguments, callbacks)
            trainer.train_from(last_checkpoint(place))
            outputs = _predict(task, trainer.model, splits, tokenizer, state)
            scores[str(seed)] = found = {
                part: task.score(splits[part], rows) for part, rows in outputs.items()
            }
            best = results.get("best")
            if best is None or (
                "validation" in found
                and task.is_better(found["validation"], scores[str(best["seed"])]["validation"])
            ):
                folder = best_checkpoint(place)
                assert folder is not None  # an epoch ends with a checkpoint
                history = trainer.state.log_history
                results["best"] = {
                    "seed": seed,
                    "best_epoch": trainer.best_epoch,
                    "history": history,
                    "folder": str(folder.relative_to(work)),
                }
                if is_main:
                    trainer.model.config.save_pretrained(folder)  # tuned after the checkpoint
                    write_pictures(folder, task, splits, outputs, history)
            state.wait_for_everyone()
            if is_main:
                write_results(work, results)
        training = dict(results["best"])
        folder = work / training.pop("folder")
        training["max_length"] = max_length
        training["examples"] = {part: len(split.examples) for part, split in splits.items()}
        training["seconds"] = round(time.perf_counter() - started, 1)
        report = _report(task, options, scores, training)
        if is_main:
            finish(options.output, folder, report)
    return report


def run_settings(
    task: Task, options: FinetuningOptions, splits: Mapping[str, Split]
) -> dict[str, Any]:
    """Settings that must match to resume; data count by their content."""
    fields = dataclasses.asdict(options)
    for name in ("output", "overwrite", "resume"):
        del fields[name]
    own = {name: value for name, value in vars(task).items() if name not in ("columns", "dataset")}
    data = {}
    for part, split in splits.items():
        digest = hashlib.blake2b(digest_size=16)
        for row in (*_content(split.examples), *split.features):
            digest.update(repr(row).encode())
        data[part] = digest.hexdigest()
    return {"options": fields, "task": {"name": task.name} | own, "data": data}


def _content(examples: Sequence[Any]) -> list[dict[str, Any]]:
    """The fields of examples, without their place in a file."""
    return [
        {name: value for name, value in vars(row).items() if name != "place"} for row in examples
    ]


def note_overlap(splits: Mapping[str, Split]) -> None:
    """Gives a note for held-out examples that are all in another part, as in the same file."""
    known = {part: set(map(repr, _content(split.examples))) for part, split in splits.items()}
    for part, others in (("validation", ["train"]), ("test", ["train", "validation"])):
        for other in others:
            if part in known and known[part] <= known.get(other, set()):
                named = "training" if other == "train" else other
                note = (
                    f"all {len(splits[part].examples):,} {part} examples are {named} examples too. "
                    "Their scores do not show how well the model does on new texts"
                )
                warnings.warn(note, InputNote, stacklevel=2)
                break


def prepare(
    task: Task,
    named: Mapping[str, str],
    tokenizer: Any,
    config: Any,
    options: FinetuningOptions,
) -> tuple[dict[str, Split], int]:
    """Reads and tokenizes the data, and sets the task's labels.

    Args:
        task: The task.
        named: The sources by part, with "train".
        tokenizer: The model's tokenizer.
        config: The checkpoint's config.
        options: How to train.

    Returns:
        The splits by part, and the length at which sequences are cut.

    Raises:
        ValueError: The data cannot be used.
    """
    length = sequence_length(task, tokenizer, config, options.max_length)
    examples = {part: task.read(source) for part, source in named.items()}
    if options.split is not None:
        shares = read_shares(options.split)
        examples = split_examples(examples["train"], shares, options.seeds[0])
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
    scores: dict[str, dict[str, Metrics]],
    training: dict[str, Any],
) -> dict[str, Any]:
    settings = dataclasses.asdict(options)
    report: dict[str, Any] = {"task": task.name, "model": settings.pop("model")}
    for name in ("output", "overwrite", "resume", "seeds"):
        del settings[name]
    if task.labels:
        report["labels"] = task.labels
    best = scores[str(training["seed"])]
    report |= best
    history = [
        {name.removeprefix("eval_"): value for name, value in entry.items()}
        for entry in training["history"]
        if f"eval_{task.best_metric}" in entry
    ]
    report["training"] = settings | training | {"history": history}
    if len(scores) > 1:
        report["seeds"] = {int(seed): found for seed, found in scores.items()}
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
