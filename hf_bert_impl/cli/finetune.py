"""`hf-bert finetune`: trains a BERT for one task on labelled data."""

from __future__ import annotations

import dataclasses
import os
from typing import Annotated, Any

import typer

from hf_bert_impl import checkpoints
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import (
    DataOptions,
    OutputFolder,
    PushToHub,
    Silent,
    from_dataclass,
    one_of,
    taken,
)
from hf_bert_impl.errors import InputError
from hf_bert_impl.files.json_files import to_json
from hf_bert_impl.tables import console, print_table
from hf_bert_impl.training.finetuning_options import FinetuningOptions
from hf_bert_impl.training.launch import check_not_refused

TASKS = (
    *("classification", "regression", "token-classification"),
    *("question-answering", "multiple-choice", "masked-lm"),
)


@dataclasses.dataclass(frozen=True)
class TaskOptions(DataOptions):
    """The data of a task, and how they are read."""

    text_pair_column: str | None = None
    """The second text of a pair; for multiple-choice the choices, as a,b,c."""
    multi_label: Annotated[
        bool | None, typer.Option("--multi-label", help="Several labels per text: a,b or a list.")
    ] = None
    doc_stride: int | None = None
    """question-answering: overlap between windows of a long text, in tokens."""
    masking: str | None = dataclasses.field(
        default=None, metadata={"choices": ("token", "whole-word")}
    )
    """masked-lm: token or whole-word; None for token."""


@from_dataclass(TaskOptions, FinetuningOptions, output=OutputFolder)
def finetune(
    fields: dict[str, Any],
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help=f"{', '.join(TASKS)}; or a GLUE task, such as mrpc.",
            autocompletion=one_of(*TASKS),
        ),
    ],
    train: Annotated[
        str | None,
        typer.Option(
            help="Training data: .tsv, .csv, .jsonl, .json, .parquet, .conll, SQuAD's .json, or a "
            "folder with a subfolder of .txt for each class; with --dataset a split."
        ),
    ] = None,
    validation: Annotated[
        str | None, typer.Option(help="Data to choose the best epoch on.")
    ] = None,
    test: Annotated[str | None, typer.Option(help="Data to score at the end.")] = None,
    push_to_hub: PushToHub = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print metrics.json in place of a table.")
    ] = False,
    quiet: Silent = False,
) -> None:
    """Fine-tune a BERT for a task and score it.

    DIR gets model, tokenizer, metrics.json, pictures and a model card at the end. To resume an
    interrupted run, repeat the command with --resume; it ends with the same weights. For several
    GPUs or machines: accelerate launch $(which hf-bert) finetune …

    Example: hf-bert finetune classification --model google-bert/bert-base-uncased --train
    train.tsv --validation dev.tsv --text-column 0 --label-column 1 --output sentiment
    """
    check_not_refused()
    output = fields["output"]
    if int(os.environ.get("RANK", 0)):  # only the first process prints and pushes
        quiet, as_json, push_to_hub = True, False, None
    with quiet_libraries():
        checkpoint = checkpoints.open_checkpoint(fields["model"], with_tokenizer=True)
        from hf_bert_impl.tasks.registry import GLUE, make_task
        from hf_bert_impl.training.finetuning import Sources
        from hf_bert_impl.training.finetuning import finetune as run
        from hf_bert_impl.training.finetuning_output import check_new, unfinished
        from hf_bert_impl.training.reporting import progress

        data = taken(TaskOptions, fields)
        names = ("doc_stride", "masking", "multi_label")
        special = {name: getattr(data, name) for name in names}
        chosen = {name: value for name, value in special.items() if value is not None}
        made = make_task(task, data.columns, data.dataset, **chosen)
        if task in GLUE:
            validation = validation or GLUE[task].validation
        if train is None and made.dataset is None:
            raise InputError("There is no training data. Add --train FILE or --dataset ID.")
        fields |= {"model": checkpoint.path, "output": output.expanduser()}
        options = FinetuningOptions(**fields)
        if push_to_hub is not None:
            from hf_bert_impl.hub.uploading import reserve

            check_new(options)
            reserve(push_to_hub, made.head)
        try:
            with progress(not quiet) as callbacks:
                sources = Sources(train or "train", validation, test)
                report = run(made, sources, options, callbacks)
        except KeyboardInterrupt:
            if unfinished(options.output).is_dir() and not quiet:
                typer.echo("interrupted; run the same command with --resume to resume", err=True)
            raise
        if push_to_hub is not None:
            import hf_bert_impl
            from hf_bert_impl.hub.pushing import push_folder

            push_folder(options.output, push_to_hub, getattr(hf_bert_impl, made.head))
    if as_json:
        typer.echo(to_json(report))
    elif not quiet:
        print_report(f"{output}: {task}", report)


def print_report(title: str, report: dict[str, Any]) -> None:
    """Prints the scores on validation and test data, with the spread over seeds."""
    parts = [part for part in ("validation", "test") if part in report]
    rows = []
    for name in report[parts[0]] if parts else ():
        cells = []
        for part in parts:
            cell = f"{report[part][name]:.4f}"
            if "spread" in report:
                spread = report["spread"][part][name]
                cell += f" ({spread['mean']:.4f} ± {spread['std']:.4f})"
            cells.append(cell)
        rows.append((name, *cells))
    training = report["training"]
    note = f"{training['examples']['train']:,} training examples, {training['seconds']:,.0f} s"
    if training["best_epoch"]:
        note += f", best after epoch {training['best_epoch']:g}"
    print_table(console(), title, ("", *parts), rows, note)
