"""`hf-bert convert` and `hf-bert inspect`: checkpoints of any format."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import typer
from rich import filesize
from rich.text import Text

from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.reports import show
from hf_bert_impl.cli.shared_options import only
from hf_bert_impl.conversion.options import ConvertOptions
from hf_bert_impl.files.json_files import to_json
from hf_bert_impl.files.output_folder import check_output
from hf_bert_impl.progress import progress_bar
from hf_bert_impl.tables import console, print_table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A checkpoint of any format."""

    TAKES_FILE: ClassVar = True

    model: str
    """A folder, a TensorFlow prefix (bert_model.ckpt), a file, a zip or tar archive, or a hub
    id."""
    as_json: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Convert(ConvertOptions, Source):
    """Convert any BERT checkpoint to a folder for transformers, and verify it.

    Reads TensorFlow checkpoints, Keras .h5, Flax .msgpack, PyTorch files and pickled modules, and
    safetensors. It never runs code from a checkpoint. The folder appears when the conversion
    succeeds.

    Example: hf-bert convert uncased_L-12_H-768_A-12.zip --output bert-base-uncased

    Example: hf-bert convert google-bert/bert-base-cased -o bert-base-cased --check-all
    """

    output: Path

    def run(self) -> None:
        """Converts, and prints the report."""
        check_output(self.output, [Path(self.model).expanduser()], self.overwrite)
        with quiet_libraries():
            from hf_bert_impl.conversion import convert

            with progress_bar(not self.as_json) as update:

                def progress(done: int, total: int) -> None:
                    update(done, f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB", total)

                options = dataclasses.asdict(only(ConvertOptions, self))
                report = convert(self.model, self.output, progress=progress, **options)
        show(report, self.as_json)
        if not self.as_json:
            files = ", ".join(file["name"] for file in report.result["files"])
            typer.echo(f"{self.output}: {files}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspect(Source):
    """List the tensors of a checkpoint and their names after conversion.

    Example: hf-bert inspect bert_model.ckpt
    """

    def run(self) -> None:
        """Prints the tensors."""
        with quiet_libraries():
            from hf_bert_impl.conversion.listing import list_tensors

            listing = list_tensors(self.model)
        if self.as_json:
            typer.echo(to_json(listing))
        else:
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
