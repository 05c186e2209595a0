"""`hf-bert convert` and `hf-bert inspect`: checkpoints of any format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import filesize
from rich.text import Text

from hf_bert_impl.cli.errors import in_options, quiet_libraries
from hf_bert_impl.cli.options import AsJson, from_dataclass
from hf_bert_impl.cli.reports import show
from hf_bert_impl.conversion.options import ConvertOptions
from hf_bert_impl.files.json_files import to_json
from hf_bert_impl.progress import progress_bar
from hf_bert_impl.tables import console, print_table

_SOURCE = (
    "A folder, a TensorFlow prefix (bert_model.ckpt), a file, a zip or tar archive, or a hub id."
)


@from_dataclass(ConvertOptions)
def convert(
    fields: dict[str, Any],
    context: typer.Context,
    src: Annotated[Path, typer.Argument(metavar="SRC", help=_SOURCE)],
    dst: Annotated[Path, typer.Argument(metavar="DST", help="The folder to write.")],
    as_json: AsJson = False,
) -> None:
    """Convert any BERT checkpoint to a folder for transformers, and verify it.

    Reads TensorFlow checkpoints, Keras .h5, Flax .msgpack, PyTorch files and pickled modules, and
    safetensors. It never runs code from a checkpoint. DST appears when the conversion succeeds.

    Example: hf-bert convert uncased_L-12_H-768_A-12.zip bert-base-uncased

    Example: hf-bert convert google-bert/bert-base-cased bert-base-cased --check-all
    """
    with quiet_libraries():
        from hf_bert_impl.conversion import convert as run

        with progress_bar(not as_json) as update:

            def progress(done: int, total: int) -> None:
                update(done, f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB", total)

            report = run(src, dst, progress=progress, **fields)
    report.notes = [in_options(note, context.command) for note in report.notes]
    show(report, as_json)
    if not as_json:
        typer.echo(f"{dst}: {', '.join(file['name'] for file in report.result['files'])}")


def inspect(
    src: Annotated[Path, typer.Argument(metavar="SRC", help=_SOURCE)],
    as_json: AsJson = False,
) -> None:
    """List the tensors of a checkpoint and their names after conversion.

    Example: hf-bert inspect bert_model.ckpt
    """
    with quiet_libraries():
        from hf_bert_impl.conversion.listing import list_tensors

        listing = list_tensors(src)
    if as_json:
        typer.echo(to_json(listing))
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
        out.print(Text(f"cannot be converted: {listing['problem']}", style="yellow"))
