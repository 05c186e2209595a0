"""Exported files in their runtimes on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.export.options import FILES
from hf_bert_impl.export.program import INPUTS

if TYPE_CHECKING:
    from torch import Tensor

    #: Named inputs to named outputs.
    Run = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]


def open_file(folder: Path, kind: str, threads: int) -> Run:
    """Opens an exported model.

    Args:
        folder: The folder of the export.
        kind: One of `options.FILES`.
        threads: Threads of ONNX Runtime and OpenVINO; a torch program uses torch's.

    Returns:
        A function from `input_ids`, `attention_mask` and `token_type_ids` to the model's outputs.

    Raises:
        ValueError: The runtime cannot load or run it.
    """
    load = {"onnx": _open_onnx, "openvino": _open_openvino, "torch-export": _open_program}[kind]
    try:
        run = load(folder / FILES[kind], threads)
    except RuntimeError as error:
        raise _refused(kind, error) from error

    def checked(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        try:
            return run({name: inputs[name] for name in INPUTS})
        except RuntimeError as error:
            raise _refused(kind, error) from error

    return checked


def _refused(kind: str, error: RuntimeError) -> InputError:
    said = one_line(error)[:300]
    return InputError(
        f"The runtime of {kind} cannot run the exported file ({said}). Choose another "
        "`opset`, or install another version of the runtime."
    )


def onnx_session(file: Path, threads: int, *, alone: bool = False) -> Any:
    """ONNX Runtime on a file, with all graph optimisations.

    Args:
        file: The .onnx file.
        threads: Number of threads.
        alone: Whether its threads may spin between calls, as by default. That slows other timed
            code.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(alone)))
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def openvino_model(file: Path, threads: int, precision: str = "f32") -> Any:
    """OpenVINO on a file (.xml or .onnx), compiled for the CPU.

    The latency hint runs one request on all threads. The throughput hint would split them.

    Args:
        file: The model.
        threads: Number of threads.
        precision: `f32` or `bf16`. OpenVINO's default is bf16 on CPUs that have it.
    """
    import openvino

    return openvino.Core().compile_model(
        file,
        "CPU",
        {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": precision,
        },
    )


def _open_onnx(file: Path, threads: int) -> Run:
    session = onnx_session(file, threads)
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
        return dict(zip(names, session.run(names, inputs), strict=True))

    return _on_arrays(run, {given.name for given in session.get_inputs()})


def _open_openvino(file: Path, threads: int) -> Run:
    compiled = openvino_model(file, threads)
    request = compiled.create_infer_request()
    names = [output.get_any_name() for output in compiled.outputs]

    def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
        outputs = request.infer(inputs, share_inputs=True)
        return {name: outputs[name].copy() for name in names}

    return _on_arrays(run, {name for given in compiled.inputs for name in given.get_names()})


def _on_arrays(run: Callable[[Mapping[str, Any]], dict[str, Any]], taken: set[str]) -> Run:
    """A runtime on tensors; the graph lacks inputs that the model does not read."""
    import torch

    def on_tensors(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        outputs = run({name: value.numpy() for name, value in inputs.items() if name in taken})
        return {name: torch.from_numpy(value) for name, value in outputs.items()}

    return on_tensors


def _open_program(file: Path, threads: int) -> Run:
    import torch

    module = torch.export.load(file).module()

    def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        with torch.no_grad():
            outputs: dict[str, Tensor] = module(**inputs)
        return outputs

    return run
