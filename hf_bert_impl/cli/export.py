"""`hf-bert export`: a model as an ONNX or OpenVINO file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_bert_impl import checkpoints
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import Model, OutputFolder, one_of
from hf_bert_impl.cli.reports import failure_shown
from hf_bert_impl.export import FILES, check_options, export_model
from hf_bert_impl.files.output_folder import check_output
from hf_bert_impl.tables import console


def export(
    model: Model,
    output: OutputFolder,
    format: Annotated[
        str,
        typer.Option("--format", "-f", help="onnx or openvino.", autocompletion=one_of(*FILES)),
    ] = "onnx",
    opset: Annotated[
        int | None, typer.Option(help="ONNX operator version.", show_default="the exporter's")
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(
            min=1, help="The only number of tokens.", show_default="any up to the maximum"
        ),
    ] = None,
) -> None:
    """Export a model to ONNX or OpenVINO, for any batch size and length.

    The exported graph computes padding. Its outputs are compared with the model's on padded
    batches. DIR gets the graph, config and tokenizer. If the outputs differ, DIR is not written and
    the exit status is 1.

    Example: hf-bert export sentence-transformers/all-MiniLM-L6-v2 -o minilm-onnx --format onnx
    """
    check_options(format, opset)
    check_output(output, [Path(model).expanduser()], None)
    with quiet_libraries():
        import torch

        checkpoint = checkpoints.open_checkpoint(model)
        loaded, _ = checkpoints.load_whole(checkpoint, None, dtype=torch.float32)
        tokenizer = checkpoints.load_own_tokenizer(checkpoint)
        with failure_shown():
            exported = export_model(
                loaded,
                output,
                format,
                opset=opset,
                length=length,
                tokenizer=tokenizer,
                source=checkpoint.folder,
            )
    exported.report.render(console())
    sizes = ", ".join(f"{name} ({size:,} bytes)" for name, size in exported.files.items())
    typer.echo(f"{output}: {sizes}")
