"""`hf-bert prune-heads`: how much each attention head matters, and the model without the least."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_bert_impl.cli import checkpoints
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import (
    AsJson,
    Label,
    MaxLength,
    Overwrite,
    Pair,
    Picture,
    Quiet,
    Text,
)
from hf_bert_impl.errors import InputError
from hf_bert_impl.tables import console, print_table

if TYPE_CHECKING:
    from hf_bert_impl.tasks.base import Columns, Split, Task
    from hf_bert_impl.tasks.head_importance import HeadImportance
    from hf_bert_impl.tasks.metrics import Metrics

REPORT = "head_importance.json"


def prune_heads(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model with a trained head: folder or hub id.")
    ],
    data: Annotated[
        str, typer.Option(metavar="FILE", help="Data that the importance is measured on.")
    ],
    test: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Data that the model is scored on.", show_default="--data"
        ),
    ] = None,
    share: Annotated[
        float | None, typer.Option(help="What share of the heads to remove: 0.25.")
    ] = None,
    count: Annotated[int | None, typer.Option(help="Or how many of them.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The folder to write the pruned model to."),
    ] = None,
    picture: Picture = None,
    text_column: Text = None,
    text_pair_column: Pair = None,
    label_column: Label = None,
    max_length: MaxLength = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Measure the importance on only so many sequences of --data."),
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure which attention heads a task needs, and remove those that matter least.

    The task is that of the model's head: classification, tagging, question answering, masked
    words. The importance of a head is how much the loss changes with a factor on its output, by
    gradient (Michel et al. 2019). Scores before and after are of the same data. Without --share or
    --count nothing is removed, without --output nothing is written.

    Example: hf-bert prune-heads sentiment --data train.tsv --test dev.tsv --text-column 0
    --label-column 1 --share 0.3 --output sentiment-pruned
    """
    check_arguments(share, count, output)
    with quiet_libraries(), contextlib.ExitStack() as held:
        from hf_bert_impl.conversion.output_folder import claimed
        from hf_bert_impl.inference.progress import text_progress
        from hf_bert_impl.tasks.base import Columns
        from hf_bert_impl.tasks.evaluation import load_fine_tuned
        from hf_bert_impl.tasks.head_importance import head_importance, task_examples
        from hf_bert_impl.tasks.metrics import finite

        checkpoint = checkpoints.open_checkpoint(model)
        if output is not None:
            held.enter_context(claimed(output.expanduser(), Path(checkpoint.path), overwrite))
        tokenizer = checkpoints.load_tokenizer(checkpoint)
        columns = Columns(text_column, text_pair_column, label_column)
        task, splits = read_data(checkpoint, tokenizer, [data, test or data], columns, max_length)
        measured = dataclasses.replace(splits[0], features=splits[0].features[:limit])

        loaded = load_fine_tuned(checkpoint.path, task.head, prepare=False).float()
        with text_progress(not quiet, len(measured.features)) as advance:
            importance = head_importance(loaded, task_examples(task, measured, tokenizer), advance)
        pruned = choose_heads(importance, share, count)
        report: dict[str, Any] = {
            "model": model,
            "task": task.name,
            "data": data,
            "test": test or data,
            "examples": importance.examples,
            "heads": importance.heads,
            "importance": importance.scores.tolist(),
            "normalized": importance.normalized.tolist(),
            "pruned": pruned,
        }
        if pruned:
            report["before"] = score(task, loaded, splits[1], tokenizer)
            loaded.prune_heads(pruned)
            report["after"] = score(task, loaded, splits[1], tokenizer)
        report = finite(report)
        title = f"{Path(model).name or model}: importance of heads for {task.name}"
        if output is not None:
            save_pruned(checkpoint, tokenizer, output, report)
        if picture is not None:
            from hf_bert_impl.visualization import draw_head_importance

            draw_head_importance(picture, importance, pruned, title)
    if as_json:
        typer.echo(json.dumps(report, ensure_ascii=False))
        return
    print_importance(title, importance, pruned)
    if pruned:
        title = f"{Path(report['test']).name}, {len(splits[1].examples):,} examples"
        scores = [
            (name, *("–" if it is None else f"{it:.4f}" for it in (before, report["after"][name])))
            for name, before in report["before"].items()
        ]
        print_table(console(), title, ("", "before", "after"), scores)


def check_arguments(share: float | None, count: int | None, output: Path | None) -> None:
    """Check what can be checked before anything is loaded.

    Raises:
        InputError: The options contradict each other.
    """
    if share is not None and count is not None:
        raise InputError("--share and --count were both given", "one of them", "leave one out")
    if share is not None and not 0 < share < 1:
        raise InputError(
            f"--share is {share:g}", "more than 0 and less than 1", "choose such a one"
        )
    if output is not None and share is None and count is None:
        raise InputError(
            f"--output {output} was given, and nothing to remove",
            "--share or --count with it",
            "give one of them",
        )


def read_data(
    checkpoint: checkpoints.Checkpoint,
    tokenizer: Any,
    sources: list[str],
    columns: Columns,
    max_length: int | None,
) -> tuple[Task, list[Split]]:
    """The task of a checkpoint's head, and its data.

    Args:
        checkpoint: An open checkpoint.
        tokenizer: Its tokenizer.
        sources: Files.
        columns: Where they have what.
        max_length: Tokens at which sequences are cut, or None.

    Returns:
        The task, and for each file its examples.

    Raises:
        ValueError: There is no task for the head, or the data do not fit it.
    """
    from hf_bert_impl.model.configuration_bert import BertConfig
    from hf_bert_impl.tasks.base import Split, sequence_length
    from hf_bert_impl.tasks.evaluation import task_for_model

    config = BertConfig.from_pretrained(checkpoint.path)
    task = task_for_model(task_name(checkpoint, config), config, columns)
    length = sequence_length(task, tokenizer, config, max_length)
    examples = {source: task.read(source) for source in dict.fromkeys(sources)}
    task.take_config(config, [example for those in examples.values() for example in those])
    for those in examples.values():
        task.check_labels(those)
    splits = {
        source: Split(those, task.features(those, tokenizer, length))
        for source, those in examples.items()
    }
    return task, [splits[source] for source in sources]


def task_name(checkpoint: checkpoints.Checkpoint, config: Any) -> str:
    """The task that a checkpoint's head was trained for.

    Raises:
        InputError: It has no head, or one that no task is known for.
    """
    from hf_bert_impl.tasks.registry import TASKS

    named = (checkpoint.config.get("architectures") or ["BertModel"])[0]
    head = "BertForMaskedLM" if named == "BertForPreTraining" else named
    names = [name for name, task in TASKS.items() if task.head == head]
    if not names:
        heads = sorted({task.head for task in TASKS.values()})
        raise InputError(
            f"{checkpoint.name} is a {named}, which no task is known for",
            f"one of {', '.join(heads)}",
            "fine-tune it with hf-bert finetune, and name that model",
        )
    numbers = config.problem_type == "regression" or (
        config.problem_type is None and config.num_labels == 1
    )
    return "regression" if "regression" in names and numbers else names[0]


def choose_heads(
    importance: HeadImportance, share: float | None, count: int | None
) -> dict[int, list[int]]:
    """The heads to remove: layer to heads.

    Raises:
        ValueError: There are not so many, or the share is less than one.
    """
    if share is not None:
        count = round(share * importance.heads)
        if not count:
            raise InputError(
                f"--share {share:g} of {importance.heads} heads is none",
                "one or more",
                f"choose {1 / importance.heads:.2g} or more",
            )
    return {} if count is None else importance.least(count)


def score(task: Task, model: Any, split: Split, tokenizer: Any) -> Metrics:
    """The scores of a model as it is."""
    model.prepare_for_inference()
    return task.score(split, task.predict(model, split, tokenizer))


def save_pruned(
    checkpoint: checkpoints.Checkpoint, tokenizer: Any, output: Path, report: dict[str, Any]
) -> None:
    """Write the checkpoint without the pruned heads: same class, same dtype, with the report."""
    from hf_bert_impl.conversion.output_folder import output_folder
    from hf_bert_impl.hub.card import CardFacts, write_card

    # Loaded again: the measured model is in float32, and has only the head of the task.
    model, _ = checkpoints.load_model(checkpoint, checkpoints.class_name(checkpoint))
    model.prune_heads(report["pruned"])
    with output_folder(output.expanduser()) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        count = sum(map(len, report["pruned"].values()))
        whole = checkpoint.name if checkpoint.folder is None else checkpoint.folder.resolve().name
        card = f"# {output.name}\n\n{count} attention heads of {whole} are pruned.\n"
        write_card(folder, CardFacts(output.name, model, code=False, card=card))
        text = json.dumps(report, indent=2, ensure_ascii=False)
        (folder / REPORT).write_text(text + "\n", encoding="utf-8")


def print_importance(
    title: str, importance: HeadImportance, pruned: Mapping[int, Sequence[int]]
) -> None:
    """Print the normalised importance of each head, a row a layer; the pruned ones are marked."""
    from rich.text import Text

    def cell(layer: int, head: int, value: float) -> Text:
        text = "–" if math.isnan(value) else f"{value:.2f}".removeprefix("0")
        return Text(f"{text}*", "red") if head in pruned.get(layer, ()) else Text(text)

    scores = importance.normalized.tolist()
    rows = [
        [Text(str(layer)), *(cell(layer, head, value) for head, value in enumerate(row))]
        for layer, row in enumerate(scores)
    ]
    note = f"mean |gradient| of {importance.examples:,} examples, ℓ2 norm of a layer 1"
    if pruned:
        note += f"; * pruned: {sum(map(len, pruned.values()))} of {importance.heads} heads"
    columns = ("layer", *map(str, range(len(scores[0]))))
    print_table(console(), title, columns, rows, note, words=())
