"""`hf-bert pretrain`: trains a BERT on text files."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_bert_impl import checkpoints
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import (
    AsJson,
    Files,
    OutputFolder,
    PushToHub,
    Silent,
    from_dataclass,
)
from hf_bert_impl.files.json_files import to_json
from hf_bert_impl.tables import console, print_table
from hf_bert_impl.training.launch import check_not_refused
from hf_bert_impl.training.pretraining_options import PretrainingOptions

if TYPE_CHECKING:
    from hf_bert_impl.training.pretraining import PretrainingResult

MODEL, RUN = "The model", "The run"
#: Headings of the help, by the first field below each.
PANELS = {"tokenizer": MODEL, "layout": "The text", "max_steps": "Training", "logging_steps": RUN}


def _size(text: str, default: str) -> Any:
    return typer.Option(min=1, help=text, show_default=default, rich_help_panel=MODEL)


@from_dataclass(
    PretrainingOptions,
    panels=PANELS,
    files=Files,
    output=OutputFolder,
    sizes=None,
)
def pretrain(
    fields: dict[str, Any],
    layers: Annotated[int | None, _size("Encoder layers.", "12")] = None,
    hidden_size: Annotated[int | None, _size("Hidden size.", "768")] = None,
    heads: Annotated[int | None, _size("Attention heads.", "hidden size / 64")] = None,
    intermediate_size: Annotated[int | None, _size("Feed-forward size.", "4 × hidden size")] = None,
    push_to_hub: PushToHub = None,
    as_json: AsJson = False,
    quiet: Silent = False,
) -> None:
    """Train a BERT on text, from random weights or from a checkpoint.

    DIR gets the model, its checkpoints, training_log.jsonl, tensorboard/ and curves.png. To resume
    an interrupted run, repeat the command with --resume; it ends with the same weights. For several
    GPUs or machines: accelerate launch $(which hf-bert) pretrain …

    Example: hf-bert pretrain corpus.txt --tokenizer my-tokenizer --layers 4 --hidden-size 256
    --max-steps 5000 --output my-bert
    """
    check_not_refused()
    from hf_bert_impl.training.pretraining import check_new
    from hf_bert_impl.training.pretraining import pretrain as run
    from hf_bert_impl.training.pretraining_model import MODELS
    from hf_bert_impl.training.reporting import progress

    sizes = {
        "num_hidden_layers": layers,
        "hidden_size": hidden_size,
        "num_attention_heads": heads,
        "intermediate_size": intermediate_size,
    }
    chosen = {name: size for name, size in sizes.items() if size is not None}
    options = PretrainingOptions(**fields, sizes=chosen)
    if int(os.environ.get("RANK", 0)):  # only the first process prints and pushes
        quiet, as_json, push_to_hub = True, False, None
    with quiet_libraries(), dataset_bars(not quiet):
        if options.model is not None:
            checkpoints.open_checkpoint(options.model)
        if push_to_hub is not None:
            from hf_bert_impl.hub.uploading import reserve

            check_new(options)
            reserve(push_to_hub, MODELS[options.objective].__name__)
        try:
            with progress(not quiet) as callbacks:
                result = run(options, callbacks)
        except KeyboardInterrupt:
            if not quiet:
                typer.echo("interrupted; run the same command with --resume to resume", err=True)
            raise
        if push_to_hub is not None:
            from hf_bert_impl.hub.pushing import push_folder

            push_folder(options.output, push_to_hub, MODELS[options.objective])
    if as_json:
        typer.echo(to_json(result))
    elif not quiet:
        print_result(result)


@contextlib.contextmanager
def dataset_bars(show: bool) -> Iterator[None]:
    """Shows the progress bars of `datasets` on a terminal only."""
    import datasets

    was_shown = not datasets.are_progress_bars_disabled()
    if not (show and sys.stderr.isatty()):
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if was_shown:
            datasets.enable_progress_bars()


def print_result(result: PretrainingResult) -> None:
    """Prints the last log entry and the results on held-out text."""
    names = ("mlm_loss", "mlm_accuracy", "perplexity", "nsp_loss", "nsp_accuracy")
    rows = []
    for name in (*names, "tokens_per_second"):
        cells = [
            f"{figures[key]:,.4g}" if key in figures else ""
            for figures, key in ((result.training, name), (result.validation, f"eval_{name}"))
        ]
        if any(cells):
            rows.append((name.replace("_", " "), *cells))
    if result.statistics is not None:
        rows.append(("unigram entropy", f"{result.statistics.unigram_entropy:.4g}", ""))
    title = f"{result.output}: {result.steps:,} steps"
    print_table(console(), title, ("", "training", "held out"), rows)
