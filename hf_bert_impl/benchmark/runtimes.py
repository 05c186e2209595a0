"""How transformers' model and other runtimes compute hidden states.

Every runtime is built from transformers' model, in memory, and gives both the last hidden state and
the pooled vector, as the model's call does.
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
from hf_bert_impl.export.formats import write_onnx
from hf_bert_impl.export.options import FILES
from hf_bert_impl.export.program import export_program, quiet
from hf_bert_impl.export.running import onnx_session, openvino_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Batch = dict[str, Tensor]
INPUTS = ("input_ids", "attention_mask")


@dataclasses.dataclass
class Runner:
    """Something that encodes a padded batch."""

    call: Callable[[Any], Any]
    """Takes what `convert` made; this is what is timed."""
    states: Callable[[Any], Tensor]
    """(B, S, D) float32 on the CPU, of what `call` returned."""
    convert: Callable[[Batch], Any] = lambda batch: batch
    """A batch in the form that the runtime takes; not timed."""


def model_runner(model: Any) -> Runner:
    """A torch model's unchanged call: `model(input_ids=..., attention_mask=...)`."""

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
    write_onnx(export_program(model, inputs), file)
    return file


def _arrays(batch: Batch) -> dict[str, Any]:
    return {name: value.numpy() for name, value in batch.items()}


def _first_state(outputs: Any) -> Tensor:
    return torch.from_numpy(outputs[0].copy())


def onnx_runtime(model: PreTrainedModel, dtype: str, threads: int) -> Runner:
    """ONNX Runtime, all graph optimisations; int8 by its dynamic quantisation."""
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
    """A precision by OpenVINO's name; in int8 what is not quantised runs in float32.

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
    """A compiled model of OpenVINO, by one synchronous request."""
    request = compiled.create_infer_request()
    return Runner(
        # The outputs are views of the request's memory, so nothing is copied while it is timed.
        lambda arrays: request.infer(arrays, share_inputs=True, share_outputs=True),
        _first_state,
        _arrays,
    )


def ctranslate2(model: PreTrainedModel, dtype: str, threads: int) -> Runner:
    """CTranslate2 by its own converter for BERT.

    The converter loads checkpoints by the transformers of its day and asks the config for
    `position_embedding_type`, which transformers 5 has no more. So its mapping of the weights is
    used on the model in memory, with that field put into a copy of the config.

    Raises:
        Unavailable: The processor has no such precision.
    """
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
    # The encoder gets ids, so only the size of the vocabulary matters.
    spec.register_vocabulary([f"[{number}]" for number in range(config.vocab_size)])
    spec.config.unk_token = "[0]"
    spec.config.layer_norm_epsilon = config.layer_norm_eps
    spec.validate()
    spec.optimize()
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        encoder = library.Encoder(
            folder,
            device="cpu",
            compute_type=dtype,
            intra_threads=threads,
            inter_threads=1,
        )

    def convert(batch: Batch) -> tuple[Any, Any]:
        ids = batch["input_ids"].to(torch.int32).contiguous().numpy()
        lengths = batch["attention_mask"].sum(dim=-1).to(torch.int32).numpy()
        # A StorageView does not keep its array alive, so the arrays are returned as well.
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
