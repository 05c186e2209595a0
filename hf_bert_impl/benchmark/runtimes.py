"""Runners of hidden states by transformers and other runtimes.

Each runtime is built in memory from transformers' model, and returns the last hidden state and the
pooled vector.
"""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hf_bert_impl.benchmark.cases import Unavailable
from hf_bert_impl.export import FILES, onnx_session, openvino_model, quiet, write_graph

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Batch = dict[str, Tensor]
INPUTS = ("input_ids", "attention_mask")


@dataclasses.dataclass
class Runner:
    """An encoder of padded batches.

    `convert` makes the runtime's input (untimed), `call` is timed, and `states` returns its output
    as (B, S, D) float32 on the CPU.
    """

    call: Callable[[Any], Any]
    states: Callable[[Any], Tensor]
    convert: Callable[[Batch], Any] = lambda batch: batch


def model_runner(model: Any) -> Runner:
    """A torch model's unchanged call."""

    def call(batch: Batch) -> Any:
        with torch.inference_mode():
            return model(**batch)

    def states(output: Any) -> Tensor:
        hidden: Tensor = output.last_hidden_state
        return hidden.float().cpu()

    return Runner(call, states)


def write_onnx_file(model: PreTrainedModel, inputs: tuple[str, ...] = INPUTS) -> Path:
    """transformers' model as ONNX with dynamic axes, in a temporary folder."""
    file = Path(tempfile.mkdtemp()) / FILES["onnx"]
    write_graph(model, file, inputs=inputs)
    return file


def _arrays(batch: Batch) -> dict[str, Any]:
    return {name: value.numpy() for name, value in batch.items()}


def _first_state(outputs: Any) -> Tensor:
    return torch.from_numpy(outputs[0].copy())


def onnx_runtime(model: PreTrainedModel, dtype: str, threads: int) -> Runner:
    """ONNX Runtime with all graph optimizations; int8 by its dynamic quantization."""
    file = write_onnx_file(model)
    if dtype == "int8":
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantised = file.with_name("int8.onnx")
        with quiet():
            quantize_dynamic(file, quantised, per_channel=True, weight_type=QuantType.QInt8)
        file = quantised
    session = onnx_session(file, threads, alone=True)
    return Runner(lambda arrays: session.run(None, arrays), _first_state, _arrays)


def open_vino(model: PreTrainedModel, dtype: str, threads: int) -> Runner:
    """OpenVINO from the same ONNX file.

    Raises:
        Unavailable: The processor has no such precision.
    """
    precision = openvino_precision(dtype)
    return openvino_runner(openvino_model(write_onnx_file(model), threads, precision))


def openvino_precision(dtype: str) -> str:
    """OpenVINO's name of a precision; in int8 unquantized operations run in float32.

    Raises:
        Unavailable: The processor lacks it.
    """
    import openvino

    if dtype != "bfloat16":
        return "f32"
    if "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise Unavailable("this CPU has no bfloat16")
    return "bf16"


def openvino_runner(compiled: Any) -> Runner:
    """A compiled OpenVINO model with one synchronous request."""
    request = compiled.create_infer_request()
    return Runner(
        # The outputs are views of the request's memory, without a timed copy.
        lambda arrays: request.infer(arrays, share_inputs=True, share_outputs=True),
        _first_state,
        _arrays,
    )


def ctranslate2(model: PreTrainedModel, dtype: str, threads: int) -> Runner:
    """CTranslate2 by its converter for BERT.

    The converter loads checkpoints with an older transformers and reads `position_embedding_type`
    from the config, which transformers 5 removed. So its mapping of weights is applied to the model
    in memory, with that field in a copy of the config.

    Raises:
        Unavailable: The processor lacks the precision.
    """
    if model.config.model_type != "bert":
        raise Unavailable("is compared for BERT only")
    import ctranslate2 as library
    from ctranslate2.converters import transformers as converters

    supported = library.get_supported_compute_types("cpu")
    if dtype not in supported:
        known = ", ".join(sorted(supported))
        raise Unavailable(f"computes in {known} on this CPU, not in {dtype}")
    config = model.config
    try:
        model.config = copy.deepcopy(config)
        model.config.position_embedding_type = "absolute"
        with torch.no_grad():
            spec = converters.BertLoader().get_model_spec(model)
    finally:
        model.config = config
    # The encoder gets ids: only the size of the vocabulary matters.
    spec.register_vocabulary([f"[{number}]" for number in range(config.vocab_size)])
    spec.config.unk_token = "[0]"
    spec.config.layer_norm_epsilon = config.layer_norm_eps
    spec.validate()
    spec.optimize()
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        options = {"device": "cpu", "compute_type": dtype, "intra_threads": threads}
        encoder = library.Encoder(folder, inter_threads=1, **options)

    def convert(batch: Batch) -> tuple[Any, Any]:
        ids = batch["input_ids"].to(torch.int32).contiguous().numpy()
        lengths = batch["attention_mask"].sum(dim=-1).to(torch.int32).numpy()
        # A StorageView does not keep its array alive: return the arrays too.
        views = [library.StorageView.from_array(array) for array in (ids, lengths)]
        return views, (ids, lengths)

    def call(given: tuple[Any, Any]) -> Any:
        (ids, lengths), _ = given
        return encoder.forward_batch(ids, lengths=lengths)

    def states(output: Any) -> Tensor:
        return torch.from_numpy(np.array(output.last_hidden_state))

    return Runner(call, states, convert=convert)


#: By the name of the peer.
BUILD: dict[str, Callable[[PreTrainedModel, str, int], Runner]] = {
    "onnxruntime": onnx_runtime,
    "openvino": open_vino,
    "ctranslate2": ctranslate2,
}
