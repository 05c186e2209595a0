"""`hf-bert convert` and `hf-bert inspect`: checkpoints of any format."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import filesize
from rich.text import Text

from hf_bert_impl import checkpoints
from hf_bert_impl.cli.errors import in_options, quiet_libraries
from hf_bert_impl.cli.options import AsJson, one_of
from hf_bert_impl.tables import console, print_table

_SOURCE = (
    "A folder, a TensorFlow prefix (bert_model.ckpt), a file, a zip or tar archive, or a hub id."
)


def convert(
    context: typer.Context,
    src: Annotated[Path, typer.Argument(metavar="SRC", help=_SOURCE)],
    dst: Annotated[Path, typer.Argument(metavar="DST", help="The folder to make.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="safetensors, or torch (the original names).",
            autocompletion=one_of("safetensors", "torch"),
        ),
    ] = "safetensors",
    revision: Annotated[
        str | None, typer.Option(help="Of a hub id: a branch, a tag or a commit.")
    ] = None,
    from_format: Annotated[
        str | None,
        typer.Option(
            help="What to read of several: safetensors, torch, flax, h5 or tf1.",
            show_default="the first of these that SRC has",
            autocompletion=one_of("safetensors", "torch", "flax", "h5", "tf1"),
        ),
    ] = None,
    check_all: Annotated[
        bool,
        typer.Option(
            "--check-all", help="Compare all formats that SRC has; each has to be the same model."
        ),
    ] = False,
    head: Annotated[
        str | None,
        typer.Option(
            help=f"The head to keep: {', '.join(checkpoints.HEADS)}.",
            show_default="what the checkpoint has",
            autocompletion=one_of(*checkpoints.HEADS),
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="The config file.", show_default="the one beside the weights"),
    ] = None,
    num_attention_heads: Annotated[
        int | None, typer.Option(min=1, help="For checkpoints that no config comes with.")
    ] = None,
    hidden_act: Annotated[
        str | None,
        typer.Option(
            help="The activation: gelu (exact) or gelu_new (tanh, Google's code since November "
            "2018, which calls it gelu as well).",
            show_default="the config's",
        ),
    ] = None,
    do_lower_case: Annotated[
        bool | None,
        typer.Option(
            "--do-lower-case/--no-do-lower-case",
            help="Whether the vocabulary is of lower-cased words.",
            show_default="inferred",
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="float32, float16, bfloat16 or float64.", show_default="unchanged"),
    ] = None,
    max_shard_size: Annotated[
        str | None, typer.Option(help="Most bytes of a safetensors file, as in 500MB.")
    ] = None,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Start tensors anew that SRC lacks.")
    ] = False,
    allow_nan: Annotated[
        bool, typer.Option("--allow-nan", help="Take weights with NaN and infinities.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check/--no-check", help="Compare the result with transformers' own BERT."),
    ] = True,
    reference: Annotated[
        Path | None,
        typer.Option(help="Outputs (.npz) or a second checkpoint that the result must equal."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace DST where it has files.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Convert any BERT checkpoint to a verified folder: weights, config, tokenizer, report.

    Reads TensorFlow checkpoints, Keras .h5, Flax .msgpack, PyTorch (all its containers, whole
    pickled modules too) and safetensors, without the software that wrote them, and never runs code
    that a checkpoint carries. DST appears when all went well.

    Example: hf-bert convert uncased_L-12_H-768_A-12.zip bert-base-uncased

    Example: hf-bert convert google-bert/bert-base-cased bert-base-cased --check-all
    """
    # The options have the names of the library's arguments.
    others = ("src", "dst", "as_json")
    options = {name: value for name, value in context.params.items() if name not in others}
    with quiet_libraries():
        from hf_bert_impl.conversion import convert as run

        with _progress(not as_json) as progress:
            report = run(src, dst, **options, progress=progress)
    report.notes = [in_options(note, context.command) for note in report.notes]
    if as_json:
        typer.echo(json.dumps(report.to_dict()))
        return
    report.render(console())
    typer.echo(f"{dst}: {', '.join(file['name'] for file in report.result['files'])}")


def inspect(
    src: Annotated[Path, typer.Argument(metavar="SRC", help=_SOURCE)],
    as_json: AsJson = False,
) -> None:
    """List the tensors of a checkpoint, and what each would become.

    Example: hf-bert inspect bert_model.ckpt
    """
    with quiet_libraries():
        from hf_bert_impl.conversion.listing import list_tensors

        listing = list_tensors(src)
    if as_json:
        typer.echo(json.dumps(listing))
        return
    _print_tensors(listing)


def _print_tensors(listing: dict[str, Any]) -> None:
    out = console()
    what = listing["software"] or "unknown names"
    out.print(Text(f"{listing['path']}: {listing['format']}, {what}; {listing['container'] or ''}"))
    for file in listing["files"]:
        out.print(Text(f"  {file['name']}, {filesize.decimal(file['bytes'])}"))
    rows = [
        (
            row["name"],
            " × ".join(map(str, row["shape"])) or "scalar",
            row["dtype"],
            Text(row["becomes"] or "", "dim"),
        )
        for row in listing["tensors"]
    ]
    print_table(out, "", ("tensor", "shape", "dtype", "becomes"), rows, words=(0, 2, 3))
    count = f"{len(listing['tensors'])} tensors, {listing['numbers']:,} numbers"
    out.print(Text(f"{count}; {listing['class'] or 'no class'}"))
    if listing["problem"]:
        out.print(Text(f"cannot be converted as it is: {listing['problem']}", style="yellow"))


@contextlib.contextmanager
def _progress(show: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar of the bytes written, where a person can see it."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    screen = Console(stderr=True)
    if not (show and screen.is_terminal):
        yield None
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
