"""Who computes hidden states: ours, transformers' own, ONNX Runtime, OpenVINO and CTranslate2.

Every peer is built from transformers' model with the weights of ours, in memory, gets the same
number of threads as torch, and gives both the last hidden state and the pooled vector, as the
model's call does.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hf_bert_impl.benchmark.cases import Unavailable
from hf_bert_impl.benchmark.models import UPSTREAM, Entry, made_once
from hf_bert_impl.benchmark.texts import CALIBRATION_TEXTS, Batch, calibration_batches
from hf_bert_impl.export.formats import FILES, write_onnx
from hf_bert_impl.export.program import export_program, quiet
from hf_bert_impl.export.running import onnx_session, openvino_model
from hf_bert_impl.model.kernels import prepared_kernels
from hf_bert_impl.parity import reference_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

INPUTS = ("input_ids", "attention_mask")
OUTPUTS = ("last_hidden_state", "pooler_output")


@dataclasses.dataclass
class Runner:
    """Something that encodes a padded batch."""

    call: Callable[[Any], Any]
    """Takes what `convert` made; this is what is timed."""
    states: Callable[[Any], Tensor]
    """(B, S, D) float32 on the CPU, of what `call` returned."""
    convert: Callable[[Batch], Any] = lambda batch: batch
    """A batch in the form that the runtime takes; not timed."""
    release: Callable[[], Any] | None = None
    """Hands back memory that the runtime keeps between calls."""
    kernels: Callable[[], str | None] = lambda: None
    """What computes a prepared model, in one line."""


def upstream_model(ours: PreTrainedModel, name: str) -> PreTrainedModel:
    """transformers' model with the weights of ours.

    Args:
        ours: In float32.
        name: The peer, which decides the attention; sdpa for one that is converted from it.
    """
    model = reference_model(ours)
    attention = {"upstream-eager": "eager", "flash-attention-2": "flash_attention_2"}
    model.set_attn_implementation(attention.get(name, "sdpa"))
    return model


def build_runner(entry: Entry) -> Runner:
    """Make what computes the hidden states of a contestant.

    Raises:
        Unavailable: It cannot run here.
    """
    name, dtype = entry.name, entry.dtype
    model = entry.source.load()
    if name == "prepared":
        model.prepare_for_inference(dtype=None if dtype == "float32" else dtype)
        return model_runner(model)
    if name != "unchanged":
        model = upstream_model(model, name)
    if name in ("unchanged", *UPSTREAM):
        model = model.to(getattr(torch, dtype)).eval()
        return model_runner(torch.compile(model, dynamic=True) if "compile" in name else model)
    build = {"onnxruntime": onnx_runtime, "openvino": open_vino, "ctranslate2": ctranslate2}[name]
    return build(model, entry)


def model_runner(model: Any) -> Runner:
    """A torch model's unchanged call: `model(input_ids=..., attention_mask=...)`."""

    def call(batch: Batch) -> Any:
        with torch.inference_mode():
            return model(**batch)

    def states(output: Any) -> Tensor:
        hidden: Tensor = output.last_hidden_state
        return hidden.float().cpu()

    return Runner(call, states, kernels=lambda: kernels_of(model))


def kernels_of(model: PreTrainedModel) -> str | None:
    """What computes a model of this package where it is prepared, in one line."""
    kernels = prepared_kernels(model)
    return None if kernels is None else str(kernels)


def _onnx_file(upstream: PreTrainedModel, entry: Entry, inputs: tuple[str, ...] = INPUTS) -> Path:
    def write(folder: Path) -> None:
        write_onnx(export_program(upstream, inputs), folder / FILES["onnx"])

    name = f"onnx-{type(upstream).__name__}-{len(inputs)}"
    return made_once(entry.scratch, name, write) / FILES["onnx"]


def _arrays(batch: Batch, inputs: tuple[str, ...] = INPUTS) -> dict[str, Any]:
    return {name: batch[name].numpy() for name in inputs}


def _first_state(outputs: Any) -> Tensor:
    return torch.from_numpy(outputs[0].copy())


def onnx_runtime(upstream: PreTrainedModel, entry: Entry) -> Runner:
    """ONNX Runtime, all graph optimisations; int8 by its dynamic quantisation.

    Args:
        upstream: transformers' base model in float32.
        entry: Its precision (`float32` or `int8`) and threads.
    """
    import onnxruntime as ort

    file = _onnx_file(upstream, entry)
    with tempfile.TemporaryDirectory(dir=entry.scratch) as folder:
        if entry.dtype == "int8":
            from onnxruntime.quantization import QuantType, quantize_dynamic

            quantised = Path(folder) / "int8.onnx"
            with quiet():
                quantize_dynamic(file, quantised, per_channel=True, weight_type=QuantType.QInt8)
            file = quantised
        session = onnx_session(file, entry.threads, alone=True)

    shrink = ort.RunOptions()
    shrink.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")

    def release() -> None:
        small = np.ones((1, 2), dtype=np.int64)
        session.run(OUTPUTS, dict.fromkeys(INPUTS, small), shrink)

    return Runner(
        lambda arrays: session.run(OUTPUTS, arrays),
        _first_state,
        convert=_arrays,
        release=release,
    )


def open_vino(
    upstream: PreTrainedModel,
    entry: Entry,
    inputs: tuple[str, ...] = INPUTS,
    samples: Callable[[], Iterable[Batch]] | None = None,
) -> Runner:
    """OpenVINO from the same ONNX file, one synchronous request.

    Args:
        upstream: transformers' model in float32.
        entry: Its precision and threads; int8 is NNCF's static quantisation.
        inputs: What the model takes.
        samples: Gives the batches that int8 is calibrated on; None for `calibration_batches`.

    Raises:
        Unavailable: The processor has no such precision.
    """
    import openvino as ov

    # In int8 the operations that stay in floating point run in float32, as ours do.
    precision = "bf16" if entry.dtype == "bfloat16" else "f32"
    if precision == "bf16" and "BF16" not in ov.Core().get_property(
        "CPU", "OPTIMIZATION_CAPABILITIES"
    ):
        raise Unavailable("this CPU has no bfloat16")
    file: Any = _onnx_file(upstream, entry, inputs)
    convert = functools.partial(_arrays, inputs=inputs)
    if entry.dtype == "int8":
        import nncf

        calibration = calibration_batches(entry) if samples is None else samples()
        with quiet():
            file = nncf.quantize(
                ov.convert_model(file),
                nncf.Dataset([convert(batch) for batch in calibration]),
                model_type=nncf.ModelType.TRANSFORMER,
                subset_size=CALIBRATION_TEXTS,
            )
    compiled = openvino_model(file, entry.threads, precision)
    request = compiled.create_infer_request()
    return Runner(
        # The outputs are views of the request's memory, so nothing is copied while it is timed.
        lambda arrays: request.infer(arrays, share_inputs=True, share_outputs=True),
        _first_state,
        convert=convert,
        release=compiled.release_memory,
    )


def ctranslate2(upstream: PreTrainedModel, entry: Entry) -> Runner:
    """CTranslate2 by its own converter for BERT.

    The converter loads checkpoints by the transformers of its day and asks the config for
    `position_embedding_type`, which transformers 5 has no more. So its mapping of the weights is
    used on the model in memory, with that field put into a copy of the config.

    Args:
        upstream: transformers' base model in float32.
        entry: Its precision (`float32` or `int8`) and threads.

    Raises:
        Unavailable: The processor has no such precision.
    """
    import ctranslate2 as library
    from ctranslate2.converters import transformers as converters

    supported = library.get_supported_compute_types("cpu")
    if entry.dtype not in supported:
        known = ", ".join(sorted(supported))
        raise Unavailable(f"computes in {known} on this CPU, not in {entry.dtype}")
    config = upstream.config
    try:
        upstream.config = copy.deepcopy(config)
        upstream.config.position_embedding_type = "absolute"
        with torch.no_grad():
            spec = converters.BertLoader().get_model_spec(upstream)
    finally:
        upstream.config = config
    # The encoder gets ids, so only the size of the vocabulary matters.
    spec.register_vocabulary([f"[{number}]" for number in range(config.vocab_size)])
    spec.config.unk_token = "[0]"
    spec.config.layer_norm_epsilon = config.layer_norm_eps
    spec.validate()
    spec.optimize()
    with tempfile.TemporaryDirectory(dir=entry.scratch) as folder:
        spec.save(folder)
        encoder = library.Encoder(
            folder,
            device="cpu",
            compute_type=entry.dtype,
            intra_threads=entry.threads,
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
