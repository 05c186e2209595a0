"""`hf-bert export`: a model as ONNX, OpenVINO or torch.export file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_bert_impl import checkpoints
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import AsJson, Head, Model, from_dataclass
from hf_bert_impl.cli.reports import failure_shown
from hf_bert_impl.export.options import ExportOptions
from hf_bert_impl.files.json_files import to_json
from hf_bert_impl.tables import console, print_table

if TYPE_CHECKING:
    from hf_bert_impl.export.exporting import Exported
    from hf_bert_impl.measuring.beside import Timed

MEGABYTE = 1e6


@from_dataclass(ExportOptions)
def export(
    fields: dict[str, Any],
    model: Model,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write.")],
    head: Head = None,
    as_json: AsJson = False,
) -> None:
    """Export a model to ONNX, OpenVINO or torch.export, for any batch size and length.

    The exported file's outputs are compared with the model's on padded batches, then both are
    timed. DIR gets the file, config and tokenizer. If the outputs differ, DIR is not written and
    the exit status is 1.

    Example: hf-bert export sentence-transformers/all-MiniLM-L6-v2 minilm-onnx --format onnx
    """
    with quiet_libraries():
        import torch

        from hf_bert_impl.export.exporting import export_model
        from hf_bert_impl.export.running import open_file
        from hf_bert_impl.files.output_folder import check_output
        from hf_bert_impl.measuring.beside import time_beside

        options = ExportOptions(**fields)
        options.check()
        check_output(folder, [Path(model).expanduser()], options.overwrite)
        checkpoint = checkpoints.open_checkpoint(model)
        loaded, _ = checkpoints.load_whole(checkpoint, head, dtype=torch.float32)
        tokenizer = checkpoints.load_own_tokenizer(checkpoint)
        with failure_shown(as_json):
            exported = export_model(
                loaded, folder, tokenizer=tokenizer, source=checkpoint.folder, **fields
            )
        times = time_beside(loaded, open_file(folder, options.kind, torch.get_num_threads()))
    weights = sum(tensor.nbytes for tensor in loaded.state_dict().values())
    if as_json:
        report = vars(exported) | {
            "weights_bytes": weights,
            "graph_bytes": exported.size,
            "threads": torch.get_num_threads(),
            "times": times,
        }
        typer.echo(to_json(report))
        return
    exported.report.render(console())
    threads = torch.get_num_threads()
    title = f"size and speed, float32, {threads} thread{'s' * (threads > 1)}"
    columns = ("", f"{exported.class_name} here", exported.kind, "speed-up")
    print_table(console(), title, columns, _rows(exported, weights, times))
    typer.echo(f"{folder}: {', '.join(exported.files)}")


def _rows(exported: Exported, weights: int, times: list[Timed]) -> Iterator[tuple[str, ...]]:
    """Size and speed of the model and of what was exported."""
    yield "size", *(f"{size / MEGABYTE:.1f} MB" for size in (weights, exported.size)), ""
    for row in times:
        padding = f", {row.padding:.0%} padding" if row.padding else ""
        yield (
            f"{row.rows} sequence{'s' * (row.rows > 1)}, {row.tokens} tokens{padding}",
            f"{row.model_ms:.1f} ms",
            f"{row.other_ms:.1f} ms",
            f"{1 / row.ratio:.2f} ({1 / row.greatest:.2f}–{1 / row.least:.2f})",
        )
