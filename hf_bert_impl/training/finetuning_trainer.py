"""The Trainer of fine-tuning: the task's own scores, class weights, the best checkpoint.

Any number of processes computes the same losses, each on its part of a step's examples.

Notation: B examples, S tokens, L labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor, nn
from transformers import EarlyStoppingCallback, TrainerCallback

from hf_bert_impl.errors import InputError
from hf_bert_impl.model.losses import IGNORE_INDEX, span_loss
from hf_bert_impl.tasks.base import Split, Task
from hf_bert_impl.training.finetuning_options import FinetuningOptions
from hf_bert_impl.training.processes import trainer_arguments
from hf_bert_impl.training.resumable_trainer import ResumableTrainer

#: Points of the curve of the training loss.
POINTS = 60
#: With larger class weights the loss could exceed the range of float32.
LARGEST_WEIGHT = 1_000_000


class FinetuningTrainer(ResumableTrainer):
    """A Trainer that scores with the task's own predictions, on batches without padding.

    Args:
        task: The task.
        **options: The arguments of `ResumableTrainer`; `eval_dataset` is a `Split` or None.
    """

    def __init__(self, task: Task, **options: Any) -> None:
        super().__init__(**options)
        self.task = task
        #: Batches of this process so far.
        self._batches = 0

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """The micro-batches of a step, and the number of labelled items in all processes.

        Each batch gets its own number, `items`. If the last examples of an epoch are too few for a
        batch in each process, accelerate repeats others, which do not count here.
        """
        samples, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self.args.world_size > 1:
            samples = [self._without_repeats(batch) for batch in samples]
        for batch in samples:
            batch.setdefault("items", labelled_items(batch))
        items = torch.tensor(sum(batch["items"] for batch in samples), device=device)
        return samples, self.accelerator.reduce(items, "sum").clamp(min=1)

    def _without_repeats(self, batch: dict[str, Any]) -> dict[str, Any]:
        size, processes = self.args.per_device_train_batch_size, self.args.world_size
        examples = len(self.train_dataset)
        # Processes take turns with batches, and get equally many per epoch.
        turn = self._batches % math.ceil(examples / (size * processes))
        self._batches += 1
        first = (turn * processes + self.args.process_index) * size
        real = min(examples - first, size)
        if real <= 0:  # the others wait for its gradients: compute an example that counts as 0
            return {name: value[:1] for name, value in batch.items()} | {"items": 0}
        return {name: value[:real] for name, value in batch.items()}

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """A batch's part in the loss of its step.

        Question answering's loss is taken over attended positions only. With answers, the model
        itself takes the softmax over padding too, as transformers does. It then computes padding,
        and an example's loss depends on the longest of its batch.
        """
        inputs = dict(inputs)
        items = inputs.pop("items", None)
        if "start_positions" in inputs:
            loss, outputs = self._span_loss(model, inputs)
            if num_items_in_batch is not None:
                share = items / num_items_in_batch
                loss = loss * share * self.accelerator.num_processes
        else:
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
            if items == 0:
                loss = loss * 0
        return (loss, outputs) if return_outputs else loss

    def _span_loss(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Tensor, Any]:
        start, end = inputs.pop("start_positions"), inputs.pop("end_positions")
        outputs = model(**inputs, return_dict=True)
        padding = inputs["attention_mask"] == 0  # (B, S)
        start_logits, end_logits = (
            logits.masked_fill(padding, torch.finfo(logits.dtype).min)
            for logits in (outputs.start_logits, outputs.end_logits)
        )
        return span_loss(start_logits, end_logits, start, end), outputs

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Scores the validation data; of `Trainer`'s arguments only the prefix is used."""
        split: Any = self.eval_dataset
        state = self.accelerator.state
        outputs = predict_together(self.task, self.model, split, self.processing_class, state)
        return self.log_scores(self.task.score(split, outputs), metric_key_prefix)

    @property
    def best_epoch(self) -> float | None:
        """The epoch of the best weights, or None without validation data."""
        step = self.state.best_global_step
        entries = [entry for entry in self.state.log_history if entry["step"] == step]
        return float(entries[-1]["epoch"]) if step and entries else None


def build_trainer(
    model: Any,
    tokenizer: Any,
    task: Task,
    splits: Mapping[str, Split],
    options: FinetuningOptions,
    seed: int,
    folder: Path,
    weights: Tensor | None = None,
    callbacks: Sequence[TrainerCallback] = (),
) -> FinetuningTrainer:
    """Sets up the Trainer for one run.

    Args:
        model: The loaded model.
        tokenizer: Its tokenizer, saved with it.
        task: The task.
        splits: "train", and "validation" to select the best epoch.
        options: How to train.
        seed: Of dropout and of the order of the examples.
        folder: For checkpoints.
        weights: From `class_weights`.
        callbacks: Further callbacks of the Trainer.
    """
    features = splits["train"].features
    validation = splits.get("validation")
    steps = math.ceil(math.ceil(len(features) / options.batch_size) * options.epochs)
    arguments = trainer_arguments(
        options.batch_size,
        output_dir=str(folder),
        num_train_epochs=options.epochs,
        gradient_accumulation_steps=options.gradient_accumulation,
        learning_rate=options.learning_rate,
        warmup_steps=round(options.warmup * steps),
        weight_decay=options.weight_decay,
        bf16=options.bf16,
        seed=seed,
        eval_strategy="no" if validation is None else "epoch",
        save_strategy="epoch",
        # The epochs that early stopping has waited.
        restore_callback_states_from_checkpoint=True,
        load_best_model_at_end=validation is not None,
        metric_for_best_model=task.best_metric,
        greater_is_better=task.greater_is_better,
        logging_steps=max(1, steps // POINTS),
    )
    if options.early_stopping is not None:
        callbacks = [EarlyStoppingCallback(options.early_stopping), *callbacks]
    return FinetuningTrainer(
        task,
        model=model,
        args=arguments,
        data_collator=task.collator(tokenizer),
        train_dataset=features,
        eval_dataset=validation,
        processing_class=tokenizer,
        compute_loss_func=None if weights is None else _weighted_loss(weights, model.config),
        callbacks=list(callbacks),
    )


def labelled_items(batch: Mapping[str, Any]) -> int:
    """The denominator of a batch's loss: labels, or examples if it has none (spans)."""
    if "labels" in batch:
        return int((batch["labels"] != IGNORE_INDEX).sum())
    return len(batch["input_ids"])


def predict_together(task: Task, model: Any, split: Split, tokenizer: Any, state: Any) -> list[Any]:
    """The outputs on a split, of which each process computes its part.

    Args:
        task: The task.
        model: The model, the same in all processes.
        split: The split, the same in all processes.
        tokenizer: The model's tokenizer.
        state: accelerate's.

    Returns:
        `task.predict` for the whole split, in all processes.
    """
    part = task.part(split, state.process_index, state.num_processes)
    outputs = gather_object([task.predict(model, part, tokenizer)])
    return task.joined(outputs) if len(outputs) > 1 else list(outputs[0])


def class_weights(given: str | None, task: Task, split: Split) -> Tensor | None:
    """The weight of each class in the loss.

    Args:
        given: "balanced", NAME=WEIGHT,… or None.
        task: The task, with its labels.
        split: The training data.

    Returns:
        (L,) weights with mean 1 over the training labels, so that the learning rate keeps its
        meaning. For several labels per example, the weight of each label's presence. None for equal
        weights.

    Raises:
        ValueError: The task has no classes, or a class or number is invalid.
    """
    if given is None:
        return None
    if not task.labels:
        raise InputError(
            f"class weights were given for {task.name}, which has no classes. Leave "
            "`class_weights` out.",
            "class_weights",
        )
    key = "token_labels" if "token_labels" in split.features[0] else "labels"
    labels = np.concatenate([np.atleast_1d(feature[key]) for feature in split.features])
    several = task.config().get("problem_type") == "multi_label_classification"
    size = len(task.labels)
    if several:
        counts, total = labels.reshape(-1, size).sum(axis=0), len(split.features)
    else:
        labels = labels[labels != IGNORE_INDEX]
        counts, total = np.bincount(labels, minlength=size), len(labels)
    counts = np.maximum(counts, 1)
    if given == "balanced":
        weights = (total - counts) / counts if several else total / (size * counts)
        return torch.tensor(weights, dtype=torch.float32)
    weights = np.ones(size)
    for entry in given.split(","):
        name, _, value = entry.rpartition("=")
        try:
            weights[task.labels.index(name.strip())] = float(value)
        except ValueError as error:
            raise InputError(
                f"the class weight is {entry!r}. Use 'balanced', or NAME=WEIGHT with commas "
                f"between; names: {', '.join(task.labels[:20])}."
            ) from error
    # A comparison with NaN is false.
    if not ((weights >= 0).all() and (weights <= LARGEST_WEIGHT).all() and weights.any()):
        raise InputError(
            f"`class_weights` are {given}. Use numbers from 0 to {LARGEST_WEIGHT:,}, not all 0.",
            "class_weights",
        )
    if not several:
        weights *= total / (weights * counts).sum()
    return torch.tensor(weights, dtype=torch.float32)


def _weighted_loss(weights: Tensor, config: Any) -> Callable[..., Tensor]:
    """Cross-entropy with class weights, for one or several labels per example or token."""
    several = config.problem_type == "multi_label_classification"

    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        logits = outputs["logits"].float()  # (B, L) or (B, S, L)
        factors = weights.to(logits.device)
        if several:
            total = nn.functional.binary_cross_entropy_with_logits(
                logits, labels, pos_weight=factors, reduction="sum"
            )
        else:
            total = nn.functional.cross_entropy(
                logits.flatten(0, -2),
                labels.flatten(),
                weight=factors,
                ignore_index=IGNORE_INDEX,
                reduction="sum",
            )
        if num_items_in_batch is None:
            num_items_in_batch = (labels != IGNORE_INDEX).sum().clamp(min=1)
        return total / num_items_in_batch

    return loss
