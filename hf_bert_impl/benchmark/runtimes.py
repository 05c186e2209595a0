"""Peers that are no torch models: ONNX Runtime, OpenVINO and CTranslate2.

Each is converted from transformers' model in memory, gets the same number of threads as torch, and
gives both the last hidden state and the pooled vector, as the model's call does.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_bert_impl.benchmark.peers import Batch, Runner, Unavailable, require
from hf_bert_impl.export.formats import FILES, write_onnx
from hf_bert_impl.export.program import export_program, quiet
from hf_bert_impl.export.running import onnx_session, openvino_model

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

INPUTS = ("input_ids", "attention_mask")
OUTPUTS = ("last_hidden_state", "pooler_output")


def _onnx_file(upstream: PreTrainedModel, folder: str) -> Path:
    for package in ("onnx", "onnxscript"):
        require(package)
    file = Path(folder) / FILES["onnx"]
    write_onnx(export_program(upstream, INPUTS), file)
    return file


def _arrays(batch: Batch) -> dict[str, Any]:
    return {name: batch[name].numpy() for name in INPUTS}


def _first_state(outputs: Any) -> Tensor:
    import torch

    return torch.from_numpy(outputs[0].copy())


def onnx_runtime(upstream: PreTrainedModel, dtype: str, threads: int) -> Runner:
    """ONNX Runtime, all graph optimisations; int8 by its dynamic quantisation.

    Args:
        upstream: transformers' base model in float32.
        dtype: `float32` or `int8`; its CPU kernels have no bfloat16.
        threads: How many it computes with.

    Raises:
        Unavailable: It is not installed or has no such precision.
    """
    require("onnxruntime")
    if dtype == "bfloat16":
        raise Unavailable("has no bfloat16 kernels for the CPU")
    import onnxruntime as ort

    with tempfile.TemporaryDirectory() as folder:
        file = _onnx_file(upstream, folder)
        if dtype == "int8":
            from onnxruntime.quantization import QuantType, quantize_dynamic

            quantised = Path(folder) / "int8.onnx"
            with quiet():
                quantize_dynamic(file, quantised, per_channel=True, weight_type=QuantType.QInt8)
            file = quantised
        session = onnx_session(file, threads)

    shrink = ort.RunOptions()
    shrink.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")

    def release() -> None:
        import numpy as np

        small = np.ones((1, 2), dtype=np.int64)
        session.run(OUTPUTS, dict.fromkeys(INPUTS, small), shrink)

    return Runner(
        "onnxruntime",
        dtype,
        lambda arrays: session.run(OUTPUTS, arrays),
        _first_state,
        convert=_arrays,
        release=release,
    )


def open_vino(upstream: PreTrainedModel, dtype: str, threads: int) -> Runner:
    """OpenVINO from the same ONNX file, one synchronous request.

    Args:
        upstream: transformers' base model in float32.
        dtype: `float32` or `bfloat16`; int8 needs a calibrated model.
        threads: How many it computes with.

    Raises:
        Unavailable: It is not installed or has no such precision.
    """
    require("openvino")
    if dtype == "int8":
        raise Unavailable("int8 needs NNCF and calibration data")
    import openvino as ov

    precision = {"float32": "f32", "bfloat16": "bf16"}[dtype]
    abilities = ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if dtype == "bfloat16" and "BF16" not in abilities:
        raise Unavailable("this CPU has no bfloat16")
    with tempfile.TemporaryDirectory() as folder:
        compiled = openvino_model(_onnx_file(upstream, folder), threads, precision)
    request = compiled.create_infer_request()
    return Runner(
        "openvino",
        dtype,
        # The outputs are views of the request's own memory: nothing is copied in the timed part.
        lambda arrays: request.infer(arrays, share_inputs=True, share_outputs=True),
        _first_state,
        convert=_arrays,
        release=compiled.release_memory,
    )


def ctranslate2(upstream: PreTrainedModel, dtype: str, threads: int) -> Runner:
    """CTranslate2 by its own converter for BERT.

    The converter loads checkpoints by the transformers of its day and asks the config for
    `position_embedding_type`, which transformers 5 has no more. So its mapping of the weights is
    used on the model in memory, with that field put into a copy of the config.

    Args:
        upstream: transformers' base model in float32.
        dtype: `float32` or `int8`; its CPU kernels have no bfloat16.
        threads: How many it computes with.

    Raises:
        Unavailable: It is not installed or has no such precision.
    """
    require("ctranslate2")
    import copy

    import ctranslate2 as library
    import numpy as np
    import torch
    from ctranslate2.converters import transformers as converters

    supported = library.get_supported_compute_types("cpu")
    if dtype not in supported:
        raise Unavailable(f"computes in {', '.join(sorted(supported))} on this CPU, not in {dtype}")
    config = upstream.config
    try:
        upstream.config = copy.deepcopy(config)
        upstream.config.position_embedding_type = "absolute"
        with torch.no_grad():
            spec = converters.BertLoader().get_model_spec(upstream)
    finally:
        upstream.config = config
    # It is given ids, so the vocabulary only has to have the right size.
    spec.register_vocabulary([f"[{number}]" for number in range(config.vocab_size)])
    spec.config.unk_token = "[0]"
    spec.config.layer_norm_epsilon = config.layer_norm_eps
    spec.validate()
    spec.optimize()
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        encoder = library.Encoder(
            folder, device="cpu", compute_type=dtype, intra_threads=threads, inter_threads=1
        )

    def convert(batch: Batch) -> tuple[Any, Any]:
        ids = batch["input_ids"].to(torch.int32).contiguous().numpy()
        lengths = batch["attention_mask"].sum(dim=-1).to(torch.int32).numpy()
        # StorageView does not keep the array that it looks at alive, so the arrays come along.
        views = [library.StorageView.from_array(array) for array in (ids, lengths)]
        return views, (ids, lengths)

    def call(given: tuple[Any, Any]) -> Any:
        (ids, lengths), _ = given
        return encoder.forward_batch(ids, lengths=lengths)

    def states(output: Any) -> Tensor:
        return torch.from_numpy(np.array(output.last_hidden_state))

    return Runner("ctranslate2", dtype, call, states, convert=convert, close=encoder.unload_model)
