"""`hf-bert finetune`: trains a BERT for one task on labelled data."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import Any, ClassVar

import typer

from hf_bert_impl.checkpoints import open_checkpoint
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import OPTIONAL
from hf_bert_impl.cli.shared_options import TASKS, DataOptions, only
from hf_bert_impl.errors import InputError
from hf_bert_impl.files.json_files import to_json
from hf_bert_impl.progress import dataset_bars
from hf_bert_impl.tables import console, print_table
from hf_bert_impl.training.finetuning_options import FinetuningOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finetune(FinetuningOptions, DataOptions):
    """Fine-tune a BERT for a task and score it.

    OUTPUT gets model, tokenizer, metrics.json, pictures and a model card at the end. To resume an
    interrupted run, repeat the command with --resume; it ends with the same weights. For several
    GPUs or machines: accelerate launch $(which hf-bert) finetune …

    Example: hf-bert finetune google-bert/bert-base-uncased train.tsv --task classification
    --validation dev.tsv --text-column 0 --label-column 1 --output sentiment
    """

    TRAINS: ClassVar = True

    train: str | None = dataclasses.field(default=None, metadata=OPTIONAL)
    """Training data: .tsv, .csv, .jsonl, .json, .parquet, .conll, SQuAD's .json, or a folder with a
    subfolder of .txt for each class; with --dataset a split."""
    task: str = dataclasses.field(metadata={"completions": TASKS})
    """classification, regression, token-classification, question-answering, multiple-choice or
    masked-lm; or a GLUE task, such as mrpc."""
    validation: str | None = None
    """Data to choose the best epoch on."""
    test: str | None = None
    """Data to score at the end."""
    text_pair_column: str | None = None
    """The second text of a pair; for multiple-choice the choices, as a,b,c."""
    multi_label: bool | None = None
    """Several labels per text: a,b or a list."""
    doc_stride: int | None = None
    """question-answering: overlap between windows of a long text, in tokens."""
    masking: str | None = dataclasses.field(
        default=None, metadata={"choices": ("token", "whole-word")}
    )
    """masked-lm: token or whole-word; None for token."""
    push_to_hub: str | None = None
    as_json: bool = False
    """Print metrics.json instead of a table."""
    quiet: bool = False

    def run(self) -> None:
        """Fine-tunes, and prints the scores."""
        is_first = not int(os.environ.get("RANK", 0))  # which alone prints and pushes
        is_quiet = self.quiet or not is_first
        repository = self.push_to_hub if is_first else None
        with quiet_libraries():
            checkpoint = open_checkpoint(self.model)
            from hf_bert_impl.tasks.registry import GLUE, make_task
            from hf_bert_impl.training.finetuning import Sources, finetune
            from hf_bert_impl.training.finetuning_output import check_new, unfinished
            from hf_bert_impl.training.reporting import progress

            names = ("doc_stride", "masking", "multi_label")
            special = {name: getattr(self, name) for name in names}
            chosen = {name: value for name, value in special.items() if value is not None}
            made = make_task(self.task, self.columns, self.dataset, **chosen)
            validation = self.validation
            if self.task in GLUE:
                validation = validation or GLUE[self.task].validation
            if self.train is None and made.dataset is None:
                raise InputError(
                    "There is no training data. Give TRAIN after MODEL, or --dataset ID."
                )
            options = dataclasses.replace(
                only(FinetuningOptions, self),
                model=checkpoint.path,
                output=self.output.expanduser(),
            )
            if repository is not None:
                from hf_bert_impl.hub.uploading import reserve

                check_new(options)
                reserve(repository, made.head)
            has_files = made.dataset is None
            bars = contextlib.nullcontext() if has_files else dataset_bars(not is_quiet)
            try:
                with bars, progress(not is_quiet) as callbacks:
                    sources = Sources(self.train or "train", validation, self.test)
                    report = finetune(made, sources, options, callbacks)
            except KeyboardInterrupt:
                if unfinished(options.output).is_dir() and not is_quiet:
                    line = "interrupted; run the same command with --resume to resume"
                    typer.echo(line, err=True)
                raise
            if repository is not None:
                import hf_bert_impl
                from hf_bert_impl.hub.pushing import push_folder

                push_folder(options.output, repository, getattr(hf_bert_impl, made.head))
        if self.as_json and is_first:
            typer.echo(to_json(report))
        elif not is_quiet:
            print_report(f"{self.output}: {self.task}", report)


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
