"""Who is measured: this package's model, transformers' own, and their form as a runner.

Other runtimes are in `runtimes.py`. Every peer is built from transformers' model with the weights
of ours. A peer that cannot be built is an `Unavailable` with the reason, which the report shows.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor
    from transformers import PreTrainedModel

Batch = dict[str, "Tensor"]

#: Every peer and what it is; `self` is the control, whose ratio is noise around 1.
PEERS = {
    "self": "this package beside itself: the ratio that noise alone gives",
    "upstream-sdpa": "transformers' own BERT, scaled-dot-product attention",
    "upstream-eager": "transformers' own BERT, eager attention",
    "upstream-compile": "transformers' own BERT under torch.compile (asked for by name: compiling "
    "takes a minute or more)",
    "onnxruntime": "ONNX Runtime, all graph optimisations",
    "openvino": "OpenVINO, latency hint",
    "ctranslate2": "CTranslate2",
    "flash-attention-2": "transformers' own BERT, flash_attention_2 (CUDA)",
    "sentence-transformers": "sentence-transformers (the case `encode`)",
}
DEFAULT_PEERS = tuple(name for name in PEERS if name != "upstream-compile")
TRAINING_PEERS = ("upstream-sdpa", "upstream-eager")
UPSTREAM = ("upstream-sdpa", "upstream-eager", "upstream-compile", "flash-attention-2")
#: In which precision each peer runs beside ours: in low precision also beside upstream's float32,
#: which is what most people run today.
PRECISIONS = {
    "float32": ("float32",),
    "bfloat16": ("float32", "bfloat16"),
    "int8": ("float32", "int8"),
}


class Unavailable(Exception):
    """A peer cannot run here; the message says why, in a few words."""


@dataclasses.dataclass
class Runner:
    """Something that encodes a padded batch."""

    name: str
    dtype: str
    call: Callable[[Any], Any]
    """Takes what `convert` made; this is what is timed."""
    states: Callable[[Any], Tensor]
    """(B, S, D) float32 on the CPU, of what `call` returned."""
    convert: Callable[[Batch], Any] = lambda batch: batch
    """A batch in the form that the runtime takes; not timed."""
    release: Callable[[], Any] | None = None
    """Hands back memory that the runtime keeps between calls."""
    close: Callable[[], Any] = lambda: None
    """Ends its threads and frees its memory."""


def require(package: str) -> None:
    """Check that an optional package is installed.

    Raises:
        Unavailable: It is not.
    """
    if importlib.util.find_spec(package) is None:
        name = package.replace("_", "-")
        raise Unavailable(f"{name} is not installed; pip install 'hf_bert_impl[bench]'")


def model_runner(name: str, model: PreTrainedModel, dtype: str) -> Runner:
    """A torch model's unchanged call: `model(input_ids=..., attention_mask=...)`."""
    import torch

    def call(batch: Batch) -> Any:
        with torch.inference_mode():
            return model(**batch)

    def states(output: Any) -> Tensor:
        hidden: Tensor = output.last_hidden_state
        return hidden.float().cpu()

    return Runner(name, dtype, call, states)


def our_runners(model: PreTrainedModel, dtype: str) -> tuple[list[Runner], dict[str, str]]:
    """This package's model, as it is and prepared.

    Args:
        model: In float32, in eval mode; it stays as it is.
        dtype: `float32`, `bfloat16` or `int8`.

    Returns:
        `unchanged` (not for int8, which only a prepared model has) and `prepared`, and for what
        could not be made the reason.
    """
    import torch

    runners, reasons = [], {}
    if dtype != "int8":
        plain = model if dtype == "float32" else copy.deepcopy(model).to(getattr(torch, dtype))
        runners.append(model_runner("unchanged", plain, dtype))
    if not hasattr(model, "prepare_for_inference"):
        reasons["prepared"] = "this version has no prepare_for_inference"
        return runners, reasons
    try:
        prepared = copy.deepcopy(model)
        prepared = prepared.prepare_for_inference(dtype=None if dtype == "float32" else dtype)
    except Exception as error:
        reasons["prepared"] = reason(error)
    else:
        runners.append(model_runner("prepared", prepared, dtype))
    return runners, reasons


def reason(error: BaseException) -> str:
    """Why something failed, short enough for a table."""
    text = " ".join(str(error).split())
    if not isinstance(error, Unavailable):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= 200 else text[:197] + "..."


def build_peer(name: str, upstream: PreTrainedModel, dtype: str, threads: int) -> Runner:
    """Build a peer of the forward cases.

    Args:
        name: One of `PEERS`, not `self` or `sentence-transformers`.
        upstream: transformers' base model in float32, with the weights of ours; it stays as it is.
        dtype: `float32`, `bfloat16` or `int8`.
        threads: How many it may compute with.

    Returns:
        The runner.

    Raises:
        Unavailable: It cannot run here.
    """
    from hf_bert_impl.benchmark import runtimes

    if name in UPSTREAM:
        return _upstream(name, upstream, dtype)
    if upstream.device.type != "cpu":
        raise Unavailable("compared on the CPU only")
    build = {
        "onnxruntime": runtimes.onnx_runtime,
        "openvino": runtimes.open_vino,
        "ctranslate2": runtimes.ctranslate2,
    }[name]
    return build(upstream, dtype, threads)


def _upstream(name: str, upstream: PreTrainedModel, dtype: str) -> Runner:
    import torch

    if dtype == "int8":
        raise Unavailable("transformers' BERT has no int8 for the CPU")
    model = copy.deepcopy(upstream).to(getattr(torch, dtype)).eval()
    model.set_attn_implementation(attention_backend(name, model, dtype))
    runner = model_runner(name, model, dtype)
    if name == "upstream-compile":
        runner = model_runner(name, torch.compile(model, dynamic=True), dtype)
        runner.close = torch.compiler.reset
    return runner


def attention_backend(name: str, model: PreTrainedModel, dtype: str) -> str:
    """transformers' name of an upstream peer's attention.

    Raises:
        Unavailable: flash_attention_2 where it cannot run.
    """
    if name != "flash-attention-2":
        return "eager" if name == "upstream-eager" else "sdpa"
    if model.device.type != "cuda":
        raise Unavailable("needs a CUDA device")
    if dtype != "bfloat16":
        raise Unavailable("computes in half precision only: --dtype bfloat16")
    require("flash_attn")
    return "flash_attention_2"


@dataclasses.dataclass(frozen=True)
class SentenceRunner:
    """Something that turns texts into vectors."""

    encode: Callable[[list[str]], np.ndarray]
    """N texts to vectors of length 1, (N, D)."""
    token_counts: Callable[[list[str]], list[int]] | None = None
    """How many tokens of each text are computed; None if nobody asks."""


def sentence_encoder(name: str, folder: str, dtype: str, device: str) -> SentenceRunner:
    """Load a sentence encoder.

    Args:
        name: `ours` or `sentence-transformers`.
        folder: A model with its tokenizer.
        dtype: `float32`, `bfloat16` or `int8`.
        device: Where.

    Raises:
        Unavailable: It cannot run here.
    """
    import torch

    if name == "ours":
        import hf_bert_impl

        if "TextEncoder" not in dir(hf_bert_impl):
            raise Unavailable("this version has no TextEncoder")
        ours: Any = hf_bert_impl.TextEncoder.from_pretrained(folder, dtype=dtype, device=device)

        def counts(texts: list[str]) -> list[int]:
            encoded = ours.tokenizer(texts, truncation=True, max_length=ours.max_length)
            return [len(ids) for ids in encoded["input_ids"]]

        return SentenceRunner(lambda texts: ours.encode(texts, normalize_embeddings=True), counts)
    require("sentence_transformers")
    if dtype == "int8":
        raise Unavailable("has no int8 for torch models on the CPU")
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(
        folder,
        device=device,
        trust_remote_code=False,
        model_kwargs={"dtype": getattr(torch, dtype)},
    )

    def encode(texts: list[str]) -> np.ndarray:
        # A tensor, since numpy has no bfloat16.
        vectors = theirs.encode(
            texts, normalize_embeddings=True, convert_to_tensor=True, show_progress_bar=False
        )
        result: np.ndarray = vectors.float().cpu().numpy()
        return result

    return SentenceRunner(encode)
