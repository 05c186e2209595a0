"""`hf-bert pretrain`: text files to a BERT, resumed where it was stopped."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_bert_impl.cli.errors import BadInput, one_line, quiet_libraries
from hf_bert_impl.cli.tables import console

if TYPE_CHECKING:
    from rich.table import Table
    from transformers import PreTrainedModel

    from hf_bert_impl.training.pretraining import PretrainingResult

MODEL, TEXT, TRAINING, RUN = "The model", "The text", "Training", "The run"


def pretrain(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILES...", help="Text, or .jsonl with a field `text`; UTF-8."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="The folder of the run.")
    ],
    tokenizer: Annotated[
        str | None,
        typer.Option(help="A folder or hub id.", rich_help_panel=MODEL, show_default="MODEL's"),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A checkpoint to go on with.", rich_help_panel=MODEL),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(help="A config.json for random weights.", rich_help_panel=MODEL),
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(min=1, help="Encoder layers.", rich_help_panel=MODEL, show_default="12"),
    ] = None,
    hidden_size: Annotated[
        int | None,
        typer.Option(min=1, help="Width.", rich_help_panel=MODEL, show_default="768"),
    ] = None,
    heads: Annotated[
        int | None,
        typer.Option(
            min=1, help="Attention heads.", rich_help_panel=MODEL, show_default="width / 64"
        ),
    ] = None,
    intermediate_size: Annotated[
        int | None,
        typer.Option(
            min=1, help="Feed-forward width.", rich_help_panel=MODEL, show_default="4 widths"
        ),
    ] = None,
    layout: Annotated[
        str,
        typer.Option(
            help="What a line is: sentences, paragraphs, lines, files, wikitext.",
            rich_help_panel=TEXT,
        ),
    ] = "sentences",
    validation: Annotated[
        list[str] | None,
        typer.Option(help="A file that is only scored; may be repeated.", rich_help_panel=TEXT),
    ] = None,
    validation_share: Annotated[
        float,
        typer.Option(help="Share of the documents that is only scored.", rich_help_panel=TEXT),
    ] = 0.0,
    objective: Annotated[str, typer.Option(help="mlm+nsp or mlm.", rich_help_panel=TEXT)] = (
        "mlm+nsp"
    ),
    masking: Annotated[str, typer.Option(help="token or whole-word.", rich_help_panel=TEXT)] = (
        "token"
    ),
    mlm_probability: Annotated[
        float, typer.Option(help="Share of tokens to guess.", rich_help_panel=TEXT)
    ] = 0.15,
    max_predictions: Annotated[
        int | None,
        typer.Option(min=1, help="Most tokens to guess in a sequence.", rich_help_panel=TEXT),
    ] = None,
    packing: Annotated[
        bool,
        typer.Option("--packing", help="Fill sequences with several spans.", rich_help_panel=TEXT),
    ] = False,
    max_length: Annotated[
        int, typer.Option(min=5, help="Most tokens a sequence.", rich_help_panel=TEXT)
    ] = 128,
    short_seq_prob: Annotated[
        float, typer.Option(help="Share of documents cut shorter.", rich_help_panel=TEXT)
    ] = 0.1,
    dupe_factor: Annotated[
        int, typer.Option(min=1, help="Different cuts of each document.", rich_help_panel=TEXT)
    ] = 1,
    streaming: Annotated[
        bool,
        typer.Option("--streaming", help="Prepare nothing on disk.", rich_help_panel=TEXT),
    ] = False,
    max_steps: Annotated[
        int | None,
        typer.Option(min=1, help="Optimizer steps.", rich_help_panel=TRAINING),
    ] = None,
    epochs: Annotated[
        float, typer.Option(help="Passes, without --max-steps.", rich_help_panel=TRAINING)
    ] = 1.0,
    batch_size: Annotated[
        int,
        typer.Option(min=1, help="Sequences a step, over all processes.", rich_help_panel=TRAINING),
    ] = 32,
    gradient_accumulation: Annotated[
        int,
        typer.Option(min=1, help="Parts that a batch is computed in.", rich_help_panel=TRAINING),
    ] = 1,
    learning_rate: Annotated[
        float, typer.Option(help="The highest rate.", rich_help_panel=TRAINING)
    ] = 1e-4,
    warmup: Annotated[
        float,
        typer.Option(
            help="Share of steps with a rising rate; from 1 on, steps.", rich_help_panel=TRAINING
        ),
    ] = 0.01,
    weight_decay: Annotated[
        float, typer.Option(help="AdamW's, on weights.", rich_help_panel=TRAINING)
    ] = 0.01,
    precision: Annotated[
        str, typer.Option(help="auto, float32 or bfloat16.", rich_help_panel=TRAINING)
    ] = "auto",
    gradient_checkpointing: Annotated[
        bool,
        typer.Option(
            "--gradient-checkpointing",
            help="Save memory, compute more.",
            rich_help_panel=TRAINING,
        ),
    ] = False,
    seed: Annotated[
        int, typer.Option(min=0, help="Of all that is random.", rich_help_panel=TRAINING)
    ] = 0,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the run in DIR.", rich_help_panel=RUN),
    ] = False,
    logging_steps: Annotated[
        int, typer.Option(min=1, help="Steps between log entries.", rich_help_panel=RUN)
    ] = 10,
    eval_steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Steps between evaluations.",
            rich_help_panel=RUN,
            show_default="once, at the end",
        ),
    ] = None,
    save_steps: Annotated[
        int, typer.Option(min=1, help="Steps between checkpoints.", rich_help_panel=RUN)
    ] = 500,
    keep_checkpoints: Annotated[
        int, typer.Option(min=1, help="Checkpoints that stay.", rich_help_panel=RUN)
    ] = 2,
    processes: Annotated[
        int, typer.Option(min=1, help="Processes that prepare the text.", rich_help_panel=RUN)
    ] = 1,
    workers: Annotated[
        int, typer.Option(min=0, help="Processes that load examples.", rich_help_panel=RUN)
    ] = 0,
    cache_dir: Annotated[
        str | None,
        typer.Option(
            help="Where prepared text is kept.",
            rich_help_panel=RUN,
            show_default="the cache of datasets",
        ),
    ] = None,
    push_to_hub: Annotated[
        str | None,
        typer.Option(metavar="REPO", help="Push it at the end: hf-bert push.", rich_help_panel=RUN),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, and no table.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show no progress and print no table.")
    ] = False,
) -> None:
    """Train a BERT on text, from random weights or from a checkpoint.

    DIR gets the model, its checkpoints, training_log.jsonl, tensorboard/ and curves.png. A run that
    was killed goes on with the same command and --resume, to the same weights. For several GPUs or
    machines: accelerate launch $(which hf-bert) pretrain …

    Example: hf-bert pretrain corpus.txt --tokenizer my-tokenizer --layers 4 --hidden-size 256
    --max-steps 5000 --output my-bert
    """
    from hf_bert_impl.training.pretraining import pretrain as run
    from hf_bert_impl.training.pretraining_model import MODELS
    from hf_bert_impl.training.pretraining_options import PretrainingOptions
    from hf_bert_impl.training.reporting import Progress

    sizes = {
        "num_hidden_layers": layers,
        "hidden_size": hidden_size,
        "num_attention_heads": heads,
        "intermediate_size": intermediate_size,
    }
    options = PretrainingOptions(
        files=tuple(files),
        output=output,
        tokenizer=tokenizer,
        model=model,
        config=config,
        sizes={name: size for name, size in sizes.items() if size is not None},
        layout=layout,
        validation=tuple(validation or ()),
        validation_share=validation_share,
        objective=objective,
        masking=masking,
        mlm_probability=mlm_probability,
        max_predictions=max_predictions,
        packing=packing,
        max_length=max_length,
        short_seq_prob=short_seq_prob,
        dupe_factor=dupe_factor,
        streaming=streaming,
        max_steps=max_steps,
        epochs=epochs,
        batch_size=batch_size,
        gradient_accumulation=gradient_accumulation,
        learning_rate=learning_rate,
        warmup=warmup,
        weight_decay=weight_decay,
        precision=precision,
        gradient_checkpointing=gradient_checkpointing,
        seed=seed,
        resume=resume,
        logging_steps=logging_steps,
        eval_steps=eval_steps,
        save_steps=save_steps,
        keep_checkpoints=keep_checkpoints,
        processes=processes,
        workers=workers,
        cache_dir=cache_dir,
    )
    # Only one of the processes of a distributed run speaks.
    is_main = int(os.environ.get("RANK", 0)) == 0
    quiet = quiet or not is_main
    progress = None if quiet else Progress()
    with quiet_libraries(), dataset_bars(not quiet):
        if push_to_hub is not None and is_main:
            from hf_bert_impl.hub.uploading import reserve

            reserve(push_to_hub, MODELS[objective].__name__)
        try:
            result = run(options, [progress] if progress else [])
        except KeyboardInterrupt:
            if not quiet:
                typer.echo("stopped; the same command with --resume goes on", err=True)
            raise
        finally:
            if progress is not None:
                progress.close()
        if push_to_hub is not None and is_main:
            upload(output, push_to_hub, MODELS[objective])
    if not is_main:
        return
    if as_json:
        typer.echo(json.dumps(summary(result)))
    elif not quiet:
        console().print(result_table(result))


@contextlib.contextmanager
def dataset_bars(show: bool) -> Iterator[None]:
    """Shows the progress bars of `datasets` where a person can see them, or hides them."""
    import datasets

    was_shown = not datasets.are_progress_bars_disabled()
    if not (show and sys.stderr.isatty()):
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if was_shown:
            datasets.enable_progress_bars()


def upload(folder: Path, name: str, model_class: type[PreTrainedModel]) -> None:
    """Publish the model of a run as `hf-bert push` does.

    Raises:
        BadInput: It was not possible; the model is in the folder all the same.
    """
    from hf_bert_impl import BertTokenizer
    from hf_bert_impl.hub.loading import LoadingFailed
    from hf_bert_impl.hub.pushing import push
    from hf_bert_impl.hub.uploading import PushError

    model = model_class.from_pretrained(folder)
    try:
        push(model, name, tokenizer=BertTokenizer.from_pretrained(folder), source=folder)
    except (PushError, LoadingFailed) as error:
        raise BadInput(
            f"the model could not be uploaded to {name} ({one_line(error)})",
            "a repository that takes it",
            f"it is whole in {folder}: `hf-bert push {folder} {name}` tries again",
        ) from error


def summary(result: PretrainingResult) -> dict[str, Any]:
    """The figures of a run as one JSON object."""
    return {
        "output": str(result.output),
        "steps": result.steps,
        "training": result.training,
        "validation": result.validation,
        "statistics": None if result.statistics is None else dataclasses.asdict(result.statistics),
    }


def result_table(result: PretrainingResult) -> Table:
    """The figures of a run: those of the last log entry beside those on held-out text."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=f"{result.output}: {result.steps:,} steps", box=box.SIMPLE_HEAD, title_justify="left"
    )
    table.add_column("")
    table.add_column("training", justify="right")
    table.add_column("held out", justify="right")
    names = ("mlm_loss", "mlm_accuracy", "perplexity", "nsp_loss", "nsp_accuracy")
    for name in (*names, "tokens_per_second", "flop_share"):
        cells = [
            f"{figures[key]:,.4g}" if key in figures else ""
            for figures, key in ((result.training, name), (result.validation, f"eval_{name}"))
        ]
        if any(cells):
            table.add_row(name.replace("_", " "), *cells)
    if result.statistics is not None:
        table.add_row("unigram entropy", f"{result.statistics.unigram_entropy:.4g}", "")
    return table
