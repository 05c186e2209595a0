"""Evaluation of a fine-tuned model on labelled data."""

from __future__ import annotations

import os
from typing import Any

from hf_bert_impl.checkpoints import open_checkpoint
from hf_bert_impl.inference.loading import load_config, load_tokenizer, load_whole, prepare_model
from hf_bert_impl.tasks.base import Columns, Split, Task, sequence_length
from hf_bert_impl.tasks.metrics import Metrics
from hf_bert_impl.tasks.registry import make_task


def task_for_model(
    name: str, config: Any, columns: Columns | None = None, dataset: str | None = None
) -> Task:
    """The task that a model was fine-tuned for.

    Args:
        name: One of `registry.TASKS`.
        config: The model's config, which says whether it gives several labels.
        columns: The columns of the files.
        dataset: A `datasets` id instead of files.

    Raises:
        ValueError: The task is unknown.
    """
    several = getattr(config, "problem_type", None) == "multi_label_classification"
    options = {"multi_label": True} if several and name == "classification" else {}
    return make_task(name, columns, dataset, **options)


def load_fine_tuned(
    path: str | os.PathLike[str], head: str, prepare: bool = True, batch_invariant: bool = False
) -> Any:
    """Loads a fine-tuned model in eval mode.

    Args:
        path: A folder or a hub id.
        head: BERT's class name.
        prepare: Pack the weights for the CPU's kernels (`prepare_for_inference`).
        batch_invariant: Set the config's `batch_invariant`; False keeps it.

    Raises:
        ValueError: Weights of the head are missing, or weights are not finite.
    """
    checkpoint = open_checkpoint(os.fspath(path), any_family=True)
    model, _ = load_whole(checkpoint, head, "name a model fine-tuned for it")
    if batch_invariant:  # before the kernels are chosen
        model.config.batch_invariant = True
    return prepare_model(model, None) if prepare else model


def evaluate_task(
    task: Task,
    path: str | os.PathLike[str],
    source: str,
    max_length: int | None = None,
    batch_invariant: bool = False,
) -> tuple[Metrics, Split, list[Any]]:
    """Scores a fine-tuned model.

    Args:
        task: From `task_for_model`; gets the model's label names.
        path: The model: a folder or a hub id.
        source: A file, or a split of the task's data set.
        max_length: Tokens at which sequences are cut; None for the model's maximum.
        batch_invariant: The same bits for an example in any batch.

    Returns:
        The scores, the data, and the outputs for `task.draw`.

    Raises:
        ValueError: The data cannot be read or have unknown labels, or the model was not fine-tuned
            for the task.
    """
    checkpoint = open_checkpoint(os.fspath(path), any_family=True)
    config, tokenizer = load_config(checkpoint), load_tokenizer(checkpoint.path)
    length = sequence_length(task, tokenizer, config, max_length)
    examples = task.read(source)
    task.take_config(config, examples)
    task.check_labels(examples, "the model does not have")
    # Before the weights are loaded, so that errors in the data come early.
    split = Split(examples, task.features(examples, tokenizer, length))
    model = load_fine_tuned(path, task.head, batch_invariant=batch_invariant)
    outputs = task.predict(model, split, tokenizer)
    return task.score(split, outputs), split, outputs
