"""`hf-bert export`: a model as an ONNX or OpenVINO file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import ClassVar

import typer

from hf_bert_impl.checkpoints import open_checkpoint
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.reports import failure_shown
from hf_bert_impl.export import FILES, check_options, check_packages, export_model
from hf_bert_impl.files.output_folder import check_output
from hf_bert_impl.tables import console


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export:
    """Export a model to ONNX or OpenVINO, for any batch size and length.

    The exported graph computes padding. Its outputs are compared with the model's on padded
    batches. DIR gets the graph, config and tokenizer. If the outputs differ, DIR is not written and
    the exit status is 1.

    Example: hf-bert export sentence-transformers/all-MiniLM-L6-v2 -o minilm-onnx --format onnx
    """

    TAKES_BARE: ClassVar = True

    model: str
    output: Path
    format: str = dataclasses.field(default="onnx", metadata={"choices": FILES})
    """onnx or openvino."""
    opset: int | None = None
    """ONNX operator version; None for the exporter's."""
    length: int | None = None
    """The only number of tokens; None for any up to the maximum."""

    def run(self) -> None:
        """Exports, and prints the comparison."""
        check_options(self.format, self.opset)
        check_output(self.output, [Path(self.model).expanduser()], None)
        checkpoint = open_checkpoint(self.model)
        check_packages(self.format)
        with quiet_libraries():
            import torch

            from hf_bert_impl.inference.loading import load_own_tokenizer, load_whole

            loaded, _ = load_whole(checkpoint, dtype=torch.float32)
            tokenizer = load_own_tokenizer(checkpoint.path)
            with failure_shown():
                exported = export_model(
                    loaded,
                    self.output,
                    self.format,
                    opset=self.opset,
                    length=self.length,
                    tokenizer=tokenizer,
                    source=checkpoint.folder,
                )
        exported.report.render(console())
        sizes = ", ".join(f"{name} ({size:,} bytes)" for name, size in exported.files.items())
        typer.echo(f"{self.output}: {sizes}")
