"""Pruning of the attention heads that a checkpoint's task needs least."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from hf_bert_impl import checkpoints
from hf_bert_impl.checkpoints import Checkpoint
from hf_bert_impl.errors import InputError
from hf_bert_impl.files.json_files import plain, write_json
from hf_bert_impl.files.output_folder import claimed, output_folder
from hf_bert_impl.hub.card import CardFacts, write_card
from hf_bert_impl.hub.options import PushOptions
from hf_bert_impl.model.configuration_bert import BertConfig
from hf_bert_impl.progress import text_progress
from hf_bert_impl.tasks.base import Columns, Split, Task, sequence_length
from hf_bert_impl.tasks.evaluation import load_fine_tuned, task_for_model
from hf_bert_impl.tasks.head_importance import HeadImportance, head_importance, task_examples
from hf_bert_impl.tasks.metrics import Metrics
from hf_bert_impl.tasks.pruning_options import PruningOptions
from hf_bert_impl.tasks.registry import TASKS

REPORT = "head_importance.json"


@dataclasses.dataclass(frozen=True)
class Pruning:
    """The result of `prune_checkpoint`."""

    report: dict[str, Any]
    """The content of `head_importance.json`, with scores `before` and `after` any pruning."""
    importance: HeadImportance
    pruned: dict[int, list[int]]
    """Layer to removed heads."""
    test_examples: int
    """Number of examples behind the scores."""


def prune_checkpoint(
    checkpoint: Checkpoint,
    data: str,
    *,
    columns: Columns | None = None,
    progress: bool = False,
    **options: Any,
) -> Pruning:
    """Measures the importance of attention heads for a checkpoint's task, and removes some.

    Args:
        checkpoint: An open checkpoint with a trained head and a tokenizer.
        data: A file of labelled data to measure the importance on.
        columns: The columns of the files.
        progress: Show a bar on standard error.
        **options: The fields of `PruningOptions`.

    Raises:
        ValueError, OSError: Options exclude each other, the checkpoint or the data are invalid, the
            head has no task, or too few heads would stay.
    """
    chosen = PruningOptions(**options)
    output, test = chosen.output, chosen.test or data
    with contextlib.ExitStack() as held:
        if output is not None:
            output = output.expanduser()
            held.enter_context(claimed(output, [Path(checkpoint.path)], chosen.overwrite))
        tokenizer = checkpoints.load_tokenizer(checkpoint)
        read = _read(checkpoint, tokenizer, [data, test], columns, chosen.max_length)
        task, (split, judged) = read
        split = dataclasses.replace(split, features=split.features[: chosen.limit])

        model = load_fine_tuned(checkpoint.path, task.head, prepare=False).float()
        with text_progress(progress, len(split.features)) as advance:
            importance = head_importance(model, task_examples(task, split, tokenizer), advance)
        count = chosen.count
        if chosen.share is not None:
            count = round(chosen.share * importance.heads)
            if not count:
                raise InputError(
                    f"`share` is {chosen.share:g}, which rounds to no head of {importance.heads}. "
                    f"Choose {1 / importance.heads:.2g} or more."
                )
        pruned = {} if count is None else importance.least(count)
        report: dict[str, Any] = {
            "model": checkpoint.name,
            "task": task.name,
            "data": data,
            "test": test,
            "examples": importance.examples,
            "heads": importance.heads,
            "importance": importance.scores.tolist(),
            "normalized": importance.normalized.tolist(),
            "pruned": pruned,
        }
        if pruned:
            report["before"] = _score(task, model, judged, tokenizer)
            model.prune_heads(pruned)
            report["after"] = _score(task, model, judged, tokenizer)
        report = plain(report)
        if output is not None:
            _save(checkpoint, tokenizer, output, report)
    return Pruning(report, importance, pruned, len(judged.examples))


def _read(
    checkpoint: Checkpoint,
    tokenizer: Any,
    sources: list[str],
    columns: Columns | None,
    max_length: int | None,
) -> tuple[Task, list[Split]]:
    """The task of a checkpoint's head, and the examples of each file."""
    config = BertConfig.from_pretrained(checkpoint.path)
    task = task_for_model(_task_name(checkpoint, config), config, columns)
    length = sequence_length(task, tokenizer, config, max_length)
    examples = {source: task.read(source) for source in dict.fromkeys(sources)}
    task.take_config(config, [example for items in examples.values() for example in items])
    for items in examples.values():
        task.check_labels(items)
    splits = {
        source: Split(items, task.features(items, tokenizer, length))
        for source, items in examples.items()
    }
    return task, [splits[source] for source in sources]


def _task_name(checkpoint: Checkpoint, config: BertConfig) -> str:
    """The task of a checkpoint's head."""
    named = checkpoint.architecture
    head = "BertForMaskedLM" if named == "BertForPreTraining" else named
    names = [name for name, task in TASKS.items() if task.head == head]
    if not names:
        heads = sorted({task.head for task in TASKS.values()})
        raise InputError(
            f"{checkpoint.name} is a {named}, which has no task. Fine-tune it first with "
            f"hf-bert finetune. Supported: {', '.join(heads)}."
        )
    numbers = config.problem_type == "regression" or (
        config.problem_type is None and config.num_labels == 1
    )
    return "regression" if "regression" in names and numbers else names[0]


def _score(task: Task, model: Any, split: Split, tokenizer: Any) -> Metrics:
    """The scores of a model."""
    model.prepare_for_inference()
    return task.score(split, task.predict(model, split, tokenizer))


def _save(checkpoint: Checkpoint, tokenizer: Any, output: Path, report: dict[str, Any]) -> None:
    """Writes the pruned checkpoint, in its own class and dtype, and the report."""
    # Loaded again, because the measured model is in float32 and has only the task's head.
    model, _ = checkpoints.load_model(checkpoint, checkpoints.class_name(checkpoint))
    model.prune_heads(report["pruned"])
    with output_folder(output) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        count = sum(map(len, report["pruned"].values()))
        whole = checkpoint.name if checkpoint.folder is None else checkpoint.folder.resolve().name
        card = f"# {output.name}\n\n{count} attention heads of {whole} are pruned.\n"
        write_card(folder, CardFacts(output.name, model, PushOptions(code=False), card=card))
        write_json(folder / REPORT, report)
