"""Writers of the export formats."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.export.options import FILES, no_opset
from hf_bert_impl.export.program import AXES, INPUTS, export_program, quiet

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

#: Protocol buffers are limited to 2 GB; larger weights go into a separate file.
MOST_IN_ONE_FILE = 1 << 30


def write(model: PreTrainedModel, folder: Path, kind: str, opset: int | None = None) -> None:
    """Exports a model into a folder.

    Args:
        model: A BERT of this package, in float32 on the CPU.
        folder: The folder.
        kind: One of `FILES`.
        opset: For ONNX, the version of its operators; None takes the exporter's own.

    Raises:
        ValueError: The model cannot be exported, or not in that opset.
    """
    file = folder / FILES[kind]
    program = export_program(model)
    if kind == "torch-export":
        import torch

        # Into memory first: on a full disk torch's own writer aborts the process.
        content = io.BytesIO()
        torch.export.save(program, content)
        file.write_bytes(content.getbuffer())
    elif kind == "onnx":
        write_onnx(program, file, opset=opset)
    else:
        write_openvino(program, file)


def write_onnx(
    program: torch.export.ExportedProgram, file: Path, *, opset: int | None = None
) -> None:
    """Writes a program as ONNX.

    Args:
        program: From `export_program`.
        file: The file to write; above a gigabyte the weights go into `FILE.data`.
        opset: The version of ONNX's operators; None takes the exporter's own.

    Raises:
        ValueError: The exporter cannot write the model, or not in that opset.
    """
    import onnx
    import torch

    size = sum(tensor.nbytes for tensor in program.state_dict.values())
    inputs = {
        node.name: node.meta["val"].ndim
        for node in program.graph.nodes
        if node.name in program.graph_signature.user_inputs
    }
    # The program is traced again. With gradients, torch's attention would have another layout.
    with torch.no_grad(), quiet():
        try:
            torch.onnx.export(
                program,
                f=file,
                input_names=[name for name in INPUTS if name in inputs],
                # The program's axes have lost their names.
                dynamic_shapes={name: dict(enumerate(AXES[n])) for name, n in inputs.items()},
                output_names=list(program.call_spec.out_spec.context),
                opset_version=opset,
                dynamo=True,
                verbose=False,
                external_data=size > MOST_IN_ONE_FILE,
            )
        except torch.onnx.OnnxExporterError as error:
            if opset is not None:
                raise no_opset(opset, _reason(error)) from error
            raise InputError(
                "The installed torch and onnxscript cannot write this model "
                f"({_reason(error)}). Install the versions of hf_bert_impl's constraints, or "
                "choose `kind='torch-export'`."
            ) from error
    operators = onnx.load(file, load_external_data=False).opset_import
    made = next(entry.version for entry in operators if entry.domain in ("", "ai.onnx"))
    # Where the exporter cannot convert to the opset, it only logs that.
    if opset is not None and made != opset:
        raise no_opset(opset, f"the exporter made {made}")


def _reason(error: BaseException) -> str:
    """The first cause of an exporter's error, whose message is pages long."""
    while error.__cause__ is not None:
        error = error.__cause__
    return one_line(error)[:200]


def write_openvino(program: torch.export.ExportedProgram, file: Path) -> None:
    """Writes a program as OpenVINO's intermediate representation, by way of ONNX.

    Args:
        program: From `export_program`.
        file: The .xml to write; its .bin gets the weights in float32.

    Raises:
        OSError: The disk is full.
    """
    import tempfile

    import openvino

    with tempfile.TemporaryDirectory() as folder:
        onnx_file = Path(folder) / FILES["onnx"]
        write_onnx(program, onnx_file)
        # compress_to_fp16 below is on by default.
        graph = openvino.convert_model(onnx_file)
        # ONNX's names of axes are lost; the layout restores them.
        for given in graph.get_parameters():
            axes = ",".join(AXES[len(given.get_partial_shape())])
            given.set_layout(openvino.Layout(f"[{axes}]"))
        try:
            openvino.save_model(graph, file, compress_to_fp16=False)
        except RuntimeError as error:  # an error of a stream, without a reason
            raise OSError(
                f"OpenVINO cannot write its file ({one_line(error)}). Free some disk space, or "
                "choose another folder."
            ) from error
