"""`hf-bert finetune`: a pre-trained BERT and labelled data to a model for one task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_bert_impl.cli import checkpoints
from hf_bert_impl.cli.errors import BadInput, quiet_libraries
from hf_bert_impl.cli.score_tables import print_scores

#: Steps of the progress bar.
PARTS = 1000


def finetune(
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="classification, regression, token-classification, question-answering, "
            "multiple-choice, masked-lm; or a GLUE task by name, such as mrpc.",
        ),
    ],
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="The BERT to begin with: folder or id.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write.")],
    train: Annotated[
        str | None,
        typer.Option(
            help="Training data: .tsv, .csv, .jsonl, .conll, SQuAD's .json; with --dataset a split."
        ),
    ] = None,
    validation: Annotated[
        str | None, typer.Option(help="Data by which the best epoch is chosen.")
    ] = None,
    test: Annotated[str | None, typer.Option(help="Data that are only scored, at the end.")] = None,
    text_column: Annotated[
        str | None,
        typer.Option(
            help="The text: a name in the header, or a number from 0 where there is none.",
            show_default="text; tokens",
        ),
    ] = None,
    text_pair_column: Annotated[
        str | None,
        typer.Option(help="The second text of a pair; of multiple choice the choices, as a,b,c."),
    ] = None,
    label_column: Annotated[
        str | None, typer.Option(help="What is to be predicted.", show_default="label; tags")
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(help="A datasets id (ID:CONFIGURATION) or folder in place of files."),
    ] = None,
    epochs: Annotated[float, typer.Option(help="How often every example is seen.")] = 3.0,
    batch_size: Annotated[int, typer.Option(help="Examples a step.")] = 32,
    learning_rate: Annotated[float, typer.Option(help="The highest learning rate.")] = 5e-5,
    seed: Annotated[
        list[int] | None,
        typer.Option(
            help="May be repeated: a run each, the best is kept, the spread reported.",
            show_default="42",
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(help="Tokens at which a sequence is cut.", show_default="what fits"),
    ] = None,
    multi_label: Annotated[
        bool, typer.Option("--multi-label", help="Any number of labels a text: a,b or a list.")
    ] = False,
    doc_stride: Annotated[
        int | None,
        typer.Option(help="question-answering: tokens that windows of a long text share."),
    ] = None,
    masking: Annotated[
        str | None,
        typer.Option(help="masked-lm: token or whole-word.", show_default="token"),
    ] = None,
    class_weights: Annotated[
        str | None,
        typer.Option(help="balanced, or NAME=WEIGHT,...: how much each class counts in the loss."),
    ] = None,
    early_stopping: Annotated[
        int | None, typer.Option(help="Stop after so many epochs without a better score.")
    ] = None,
    warmup: Annotated[float, typer.Option(help="Share of steps of a rising rate.")] = 0.1,
    weight_decay: Annotated[float, typer.Option(help="AdamW's weight decay.")] = 0.01,
    gradient_accumulation: Annotated[
        int, typer.Option(help="Batches whose gradients make one step.")
    ] = 1,
    bf16: Annotated[bool, typer.Option("--bf16", help="Compute in bfloat16.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUTPUT where it exists.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print metrics.json, and no table.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show no progress and print no summary.")
    ] = False,
) -> None:
    """Fine-tune a BERT for a task, and measure it.

    OUTPUT gets the model with its tokenizer, metrics.json, pictures and a model card; it appears
    when it is complete.

    Example: hf-bert finetune classification --model google-bert/bert-base-uncased --train
    train.tsv --validation dev.tsv --text-column 0 --label-column 1 --output sentiment
    """
    with quiet_libraries():
        checkpoint = checkpoints.open_checkpoint(model)
        if not checkpoints.has_tokenizer(checkpoint):
            checkpoints.load_tokenizer(checkpoint)  # which says what is missing
        from accelerate import PartialState

        from hf_bert_impl.evaluation.task import Columns
        from hf_bert_impl.evaluation.tasks import GLUE, make_task
        from hf_bert_impl.inference.progress import text_progress
        from hf_bert_impl.training.finetuning import Sources
        from hf_bert_impl.training.finetuning import finetune as run
        from hf_bert_impl.training.finetuning_options import FinetuningOptions
        from hf_bert_impl.training.finetuning_output import OutputFolder

        columns = Columns(text_column, text_pair_column, label_column)
        special = {"doc_stride": doc_stride, "masking": masking, "multi_label": multi_label or None}
        chosen = {name: value for name, value in special.items() if value is not None}
        made = make_task(task, columns, dataset, **chosen)
        if task in GLUE:
            validation = validation or GLUE[task].validation
        if train is None and made.dataset is None:
            raise BadInput("there is no --train", "labelled data", "name a file, or a --dataset")
        options = FinetuningOptions(
            model=checkpoint.path,
            output=output.expanduser(),
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            seeds=tuple(seed or (42,)),
            max_length=max_length,
            warmup=warmup,
            weight_decay=weight_decay,
            gradient_accumulation=gradient_accumulation,
            class_weights=class_weights,
            early_stopping=early_stopping,
            bf16=bf16,
            overwrite=overwrite,
        )
        try:
            with text_progress(not quiet, PARTS) as advance:
                report = run(
                    made,
                    Sources(train or "train", validation, test),
                    options,
                    lambda examples, share: advance(examples, round(PARTS * share)),
                )
        except KeyboardInterrupt:
            kept = OutputFolder(options.output).work
            if kept.is_dir() and not quiet:
                typer.echo(f"stopped; the best model so far is in {kept}", err=True)
            raise
    if not PartialState().is_main_process:
        return  # one of several processes speaks
    if as_json:
        from hf_bert_impl.evaluation.metrics import finite

        typer.echo(json.dumps(finite(report), ensure_ascii=False))
    elif not quiet:
        print_report(f"{output}: {task}", report)


def print_report(title: str, report: dict[str, Any]) -> None:
    """Print the scores of validation and test data side by side, with the spread of seeds."""
    parts = [part for part in ("validation", "test") if part in report]
    rows = []
    for name in report[parts[0]] if parts else ():
        cells = []
        for part in parts:
            cell = f"{report[part][name]:.4f}"
            if "spread" in report:
                found = report["spread"][part][name]
                cell += f" ({found['mean']:.4f} ± {found['std']:.4f})"
            cells.append(cell)
        rows.append((name, *cells))
    training = report["training"]
    note = f"{training['examples']['train']:,} training examples, {training['seconds']:,.0f} s"
    if training["best_epoch"]:
        note += f", best after epoch {training['best_epoch']:g}"
    print_scores(title, parts, rows, note)
