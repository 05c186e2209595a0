"""Comparison of a result with transformers, reference outputs, and other formats of its source.

Notation: B batch, S sequence, H hidden size, N layers, V vocabulary, L labels.
"""

from __future__ import annotations

import contextlib
import dataclasses
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import hf_bert_impl
from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.inference.loading import load_tokenizer

from .architecture import fit
from .planning import same_bits
from .source import open_source
from .target import Target, is_finite

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

#: Maximum absolute difference from outputs of the original software in float32.
OUTPUT_TOLERANCE = 2e-5
#: The same for codertimo, whose LayerNorm divides by a deviation without an epsilon in the root.
CODERTIMO_TOLERANCE = 2e-4
#: Of weights rounded to a smaller dtype: in its epsilons, as a share of an output's maximum.
ROUNDED_TOLERANCE = 32
_MAX_REFERENCE_BYTES = 1 << 30
#: Further exceptions of numpy for a damaged file.
_DAMAGED = (EOFError, zipfile.BadZipFile, zlib.error)
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
#: Scores that the original software names by their task.
_SCORES = {
    ("BertForPreTraining", "prediction_logits"): "mlm_logits",
    ("BertForPreTraining", "seq_relationship_logits"): "nsp_logits",
    ("BertForMaskedLM", "logits"): "mlm_logits",
    ("BertLMHeadModel", "logits"): "mlm_logits",
    ("BertForNextSentencePrediction", "logits"): "nsp_logits",
}
#: Two unequal odd lengths, to test padding and positions.
_LENGTHS = (5, 23)


@dataclasses.dataclass(frozen=True)
class Check:
    """One comparison of the result."""

    name: str
    passed: bool | None
    """None without a comparison, or without a bound."""
    max_error: float | None = None
    """Maximum absolute difference."""
    tolerance: float | None = None
    """The bound on it."""
    note: str = ""

    @property
    def line(self) -> str:
        """Name, error, bound and note."""
        error = "" if self.max_error is None else f" {self.max_error:.1e}"
        bound = "" if self.tolerance is None else f" (at most {self.tolerance:.0e})"
        return self.name + error + bound + f": {self.note}" * bool(self.note)


def check_upstream(folder: Path, target: Target) -> Check:
    """Load a result by this package and by transformers; compare tensors and outputs.

    Args:
        folder: The result, in safetensors.
        target: The model in it.

    Returns:
        The check.
    """
    import transformers

    name = f"outputs compared with transformers {transformers.__version__}"
    if target.config.is_extended:
        return Check(name, None, note="transformers does not have this architecture and refuses it")
    # Only here: it imports more than conversion alone needs.
    from hf_bert_impl.parity import FP32_TOLERANCE, compare_models, load_reference
    from hf_bert_impl.parity.batches import parity_batches, random_tokens

    if target.config.pruned_heads:
        return Check(name, None, note="transformers 5 does not have pruned heads and refuses them")
    reference, _ = load_reference(target.class_name, str(folder), dtype=torch.float32)
    model = load_result(folder, target.class_name)
    mine, theirs = model.state_dict(), reference.state_dict()
    if mine.keys() != theirs.keys() or not all(same_bits(mine[key], theirs[key]) for key in mine):
        return Check(name, False, note="transformers loads other tensors")
    if not all(map(is_finite, target.ranges.values())):
        return Check(name, None, note="weights with NaN or infinity cannot be compared")
    choices = 2 if target.class_name == "BertForMultipleChoice" else 0
    tokens = random_tokens(target.config, _LENGTHS)
    batch = parity_batches(tokens, target.config, choices=choices)["padded right"]
    report = compare_models(model, reference, {"padded right": batch})
    worst = report.worst
    assert worst is not None  # a model has outputs
    note = f"largest error of {len(report.rows)} tensors, relative; {worst.name}"
    return Check(name, report.passed, worst.max_relative, FP32_TOLERANCE, note)


def check_tokens(before: PreTrainedTokenizerBase | None, why_none: str, folder: Path) -> Check:
    """Compare the token ids of a result with its source's, on texts and words of the vocabulary.

    Args:
        before: The source's tokenizer; None if it cannot be loaded here.
        why_none: Why it cannot. Its files are copied unchanged.
        folder: The result, which is loaded by this package and by AutoTokenizer.
    """
    from transformers import AutoTokenizer

    from hf_bert_impl.parity.batches import token_ids, tokenizer_texts

    name = "token ids compared with the source"
    if before is None:
        return Check(name, None, note=f"not compared: {why_none}")
    texts = tokenizer_texts(before)
    expected = token_ids(before, texts)
    loaders: dict[str, Callable[[], Any]] = {
        "AutoTokenizer": lambda: AutoTokenizer.from_pretrained(folder, trust_remote_code=False),
        "hf_bert_impl": lambda: load_tokenizer(str(folder)),
    }
    for loader, load in loaders.items():
        try:
            ids = token_ids(load(), texts)
        except Exception as error:  # a class that does not fit the files may raise anything
            return Check(name, False, note=f"{loader} cannot load it: {one_line(error)[:200]}")
        wrong = [text for text, a, b in zip(texts, expected, ids, strict=True) if a != b]
        if wrong:
            note = f"{loader} returns other ids for {len(wrong)} of {len(texts)} texts"
            return Check(name, False, note=f"{note}, such as {wrong[0][:40]!r}")
    return Check(name, True, note=f"{type(before).__name__}, {len(texts)} texts")


def load_result(folder: Path, class_name: str, **options: Any) -> PreTrainedModel:
    """Load a result by this package, in float32 and eval mode."""
    cls = getattr(hf_bert_impl, class_name)
    model: PreTrainedModel = cls.from_pretrained(folder, dtype=torch.float32, **options)
    return model.eval()


def find_references(target: Target) -> list[Path]:
    """The files of reference outputs in a source's folder: `.npz` with `input_ids`."""
    references = []
    for path in sorted(target.source.folders[0].glob("*.npz")):
        with contextlib.suppress(OSError, ValueError, zipfile.BadZipFile):
            if "input_ids.npy" in zipfile.ZipFile(path).namelist():
                references.append(path)
    return references


def check_outputs(folder: Path, target: Target, file: Path) -> Check:
    """Compare outputs with those in a numpy archive, at every position, padding included.

    Args:
        folder: The result, in safetensors.
        target: The model in it.
        file: An `.npz` with `input_ids` (B, S), with or without `attention_mask` and
            `token_type_ids` (or `segment_info`). Its outputs may be `embedding_output` (B, S, H),
            `all_encoder_layers` (N, B, S, H), `sequence_output` and `pooled_output` (B, H). The
            scores may be `mlm_logits` and `mlm_log_probs` (B, S, V), `nsp_logits` and
            `nsp_log_probs` (B, 2), `logits` and `probabilities` (B, L) or (B, S, L),
            `start_logits` and `end_logits`.

    Returns:
        The check, with the name of the output that differs most.

    Raises:
        InputError: The file cannot be read, or does not fit the model.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            size = sum(info.file_size for info in archive.infolist())
        if size > _MAX_REFERENCE_BYTES:
            raise ValueError(f"it unpacks to {size:,} bytes")
        with np.load(file, allow_pickle=False) as stored:
            arrays = {name: torch.from_numpy(stored[name]) for name in stored.files}
        if "segment_info" in arrays:
            arrays.setdefault("token_type_ids", arrays["segment_info"])
        computed = _outputs(folder, target.class_name, arrays)
        common = [name for name in computed if name in arrays]
    except (OSError, ValueError, RuntimeError, LookupError, TypeError, *_DAMAGED) as error:
        raise InputError(
            f"{file} cannot be compared ({one_line(error)[:300]}). "
            "Give outputs (.npz) of this model, or remove `reference`.",
            "reference",
        ) from error
    title = f"outputs compared with {file.name}"
    for name in common:
        theirs, ours = tuple(arrays[name].shape), tuple(computed[name].shape)
        if theirs != ours:
            note = f"{name} has shape {theirs}, the model computes {ours}"
            return Check(title, None if target.fit.missing else False, note=note)
    errors = {name: (computed[name] - arrays[name]).abs().max().item() for name in common}
    codertimo = target.config.variant == "codertimo"
    tolerance, rounding = CODERTIMO_TOLERANCE if codertimo else OUTPUT_TOLERANCE, _rounding(target)
    bounds = {name: tolerance + rounding * arrays[name].abs().max().item() for name in common}
    if not errors:
        return Check(title, None, note="it has no output of this model")
    worst = max(errors, key=lambda name: _nan_last(errors[name] / bounds[name]))
    note = f"largest error of {len(errors)} outputs; {worst}"
    if target.fit.missing:
        return Check(title, None, errors[worst], None, note + "; some weights are new")
    return Check(title, errors[worst] <= bounds[worst], errors[worst], bounds[worst], note)


def _rounding(target: Target) -> float:
    """The error of outputs by weights in a smaller dtype than the source's, as a share of them."""
    pairs = ((target.tensors[name], tensor) for name, tensor in target.fit.tensors.items())
    steps = (torch.finfo(made.dtype).eps for made, given in pairs if made.dtype != given.dtype)
    step = max(steps, default=0.0)
    return ROUNDED_TOLERANCE * step if step > torch.finfo(torch.float32).eps else 0.0


@torch.no_grad()
def _outputs(folder: Path, class_name: str, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The outputs of a result, under the original software's names."""
    inputs = {name: arrays[name] for name in _INPUTS if name in arrays}
    # The original computes padding, too.
    model = load_result(folder, class_name, padding_free=False)
    base = model if class_name == "BertModel" else model.bert
    encoded = base(**inputs, output_hidden_states=True)
    outputs = {
        "embedding_output": encoded.hidden_states[0],
        "all_encoder_layers": torch.stack(encoded.hidden_states[1:]),
        "sequence_output": encoded.last_hidden_state,
    }
    if encoded.get("pooler_output") is not None:
        outputs["pooled_output"] = encoded.pooler_output
    result = {} if base is model else model(**inputs)
    for name, logits in result.items():
        if name.endswith("logits"):
            name = _SCORES.get((class_name, name), name)
            outputs[name] = logits
            outputs[name.replace("logits", "log_probs")] = logits.log_softmax(-1)
            outputs[name.replace("logits", "probabilities")] = logits.softmax(-1)
    return outputs


def check_checkpoint(target: Target, path: Path) -> Check:
    """Compare a source with a second checkpoint of the same model, tensor by tensor.

    Args:
        target: The model that the source becomes.
        path: The other checkpoint: a folder, prefix, file or archive.

    Returns:
        The check. It passes if both have a tensor in common, and all common ones are equal up to
        the rounding of the coarser dtype.

    Raises:
        InputError: The other checkpoint cannot be read, or is of another shape.
    """
    fields = {**target.config.to_dict(), "model_type": "bert"}
    with open_source(path) as other:
        theirs = fit(other.plan, target.class_name, fields).tensors
        mine = target.fit.tensors
        common = [name for name in mine if name in theirs]
        errors = {name: _difference(mine[name], theirs[name]) for name in common}
    equal = sum(error == 0.0 for error, _ in errors.values())
    beyond = [name for name, (error, bound) in errors.items() if not error <= bound]
    largest = max((error for error, _ in errors.values()), key=_nan_last, default=0.0)
    note = f"{equal} of {len(common)} tensors in common are the same, bit for bit"
    if beyond:
        note += f"; {len(beyond)} differ, such as {beyond[0]}"
    title = f"tensors compared with {path.name}"
    return Check(title, not beyond and bool(common), largest, None, note)


def _nan_last(error: float) -> tuple[bool, float]:
    """A sort key with NaN as the maximum."""
    return error != error, error


def _difference(mine: Tensor, theirs: Tensor) -> tuple[float, float]:
    """Maximum difference of a tensor, 0 for the same bits, and the bound from rounding."""
    if same_bits(mine, theirs) or not (mine.numel() or theirs.numel()):
        return 0.0, 0.0
    coarse = max((mine.dtype, theirs.dtype), key=lambda dtype: torch.finfo(dtype).eps)
    a, b = mine.double(), theirs.double()
    error = (a - b).abs().max().item()
    # Equal dtypes need no rounding.
    same_dtype = mine.dtype == theirs.dtype
    bound = 0.0 if same_dtype else torch.finfo(coarse).eps * b.abs().max().item()
    return max(error, torch.finfo(torch.float64).tiny), bound
