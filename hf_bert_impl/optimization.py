"""`optimize`: makes a loaded encoder fast in place."""

import sys
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import logging

from hf_bert_impl.encoders.forward import check_forwards, remove
from hf_bert_impl.encoders.probe import probe
from hf_bert_impl.encoders.weights import prepare, prepared_for, restore_weights
from hf_bert_impl.errors import InputError
from hf_bert_impl.inference.packed_loop import use_own_loop, use_packed_loop
from hf_bert_impl.inference.sparse_encoder import SpladeFold, splade_folds
from hf_bert_impl.model.linear import type_name
from hf_bert_impl.model.modeling_bert import BertPreTrainedModel
from hf_bert_impl.model.preparing import check_dtype, check_weights

logger = logging.get_logger(__name__)
Holder = TypeVar("Holder")
#: Maximum depth of a model in objects other than modules, such as KeyBERT's backend.
DEPTH = 3


def optimize(model: Holder, dtype: str | torch.dtype | None = "auto") -> Holder:
    """Makes a loaded BERT, or another encoder, compute without padding and with packed weights.

    Every BERT of this package in `model` is prepared for inference
    (`BertPreTrainedModel.prepare_for_inference`). Encoders of transformers keep their objects and
    weights, with another `forward` (`encoders.forward.Forward`), if a few random tokens show that
    it gives the same outputs. An encoder that differs stays as it is, with a warning.
    sentence-transformers then batches by tokens, unless a call sets `batch_size`. A
    `SparseEncoder` does not store the scores of all tokens (`splade_vectors`).

    Results equal stock's within rounding at attended positions (1e-5 in float32); states at padding
    are zero. The model is set to eval mode. `train()` restores the original weights, and
    `save_pretrained` saves them. Copies and pickles stay prepared. A later call packs the weights
    again, with its own dtype.

    Args:
        model: Any object with a BERT of transformers or of this package. For example a model, a
            `SentenceTransformer`, `CrossEncoder`, `SparseEncoder` or `MultiVectorEncoder`, a
            pipeline, or a SetFit, KeyBERT or PEFT model.
        dtype: As in `prepare_for_inference`: "float32", "bfloat16", "float16", "int8" or
            a dtype of torch. "auto" is the fastest float on this CPU, and
            None the weights' own. bfloat16 converts the weights and keeps the original ones for
            `save_pretrained`, `train()` and `restore`. Call `restore` before PEFT saves an adapter,
            which otherwise gets the converted dtype.

    Returns:
        `model` itself.

    Raises:
        InputError: It holds no encoder that this works for. It is unchanged.
        ValueError: The dtype is not supported, or weights are on the meta
            device or quantised by torch. The model is unchanged.

    Examples:
        >>> from sentence_transformers import SentenceTransformer
        >>> model = optimize(SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2"))
        >>> model.encode(["A cat naps."]).shape
        (1, 384)
    """
    check_dtype("dtype", dtype)
    models, encoders = _parts(model)
    before = {part: prepared_for(part) for part in models}
    # The modules of sentence-transformers that call a BERT's `forward` without hooks.
    parts = dict.fromkeys(part for encoder in encoders for part in encoder.modules())
    callers = {
        bert: [part for part in parts if getattr(part, "model", None) is bert] for bert in models
    }
    berts: list[Any] = []
    reasons: list[str] = []
    try:
        for part in models:
            if any(part is inner for bert in berts for inner in bert.modules()):
                continue
            check_weights(part)
            reason = None if isinstance(part, BertPreTrainedModel) else probe(part)
            if reason is None:
                berts.append(part)
            else:
                reasons.append(f"the {type_name(type(part))} {reason}")
        if not berts:
            raise InputError(
                f"The {type_name(type(model))} has no encoder that can skip padding"
                f"{': ' * bool(reasons)}{'; '.join(reasons)}. Supported are encoders of "
                "transformers that attend by its AttentionInterface, and objects that hold one."
            )
        for reason in reasons:
            logger.warning(f"not optimized, so it computes as usual: {reason}")
        for bert in berts:
            prepare(bert, dtype, callers[bert])
        for encoder in encoders:
            use_packed_loop(encoder.eval())
            if encoder.model_type == "SparseEncoder":
                for fold in splade_folds(encoder):
                    fold.enable()
    except BaseException:
        if not any(before.values()):
            restore(model)
        for bert in berts:
            if before[bert] is None:
                _give_back(bert)
            else:
                (earlier,) = before[bert]
                prepare(bert, earlier, callers[bert])
        raise
    return model


def restore(model: Holder) -> Holder:
    """Undoes `optimize`; trained weights stay.

    Args:
        model: The argument of `optimize`.

    Returns:
        `model` itself.

    Raises:
        InputError: An encoder has a wrapped forward, for example by accelerate.
    """
    models, encoders = _parts(model)
    for encoder in encoders:
        use_own_loop(encoder)
        for module in encoder.modules():
            fold = getattr(vars(module).get("forward"), "__self__", None)
            if isinstance(fold, SpladeFold):
                fold.disable()
    for part in models:
        _give_back(part)
    return model


def _give_back(bert: Any) -> None:
    """Undoes `prepare` and the change of `forward`."""
    check_forwards(bert)
    restore_weights(bert)
    remove(bert)


def _parts(holder: Any) -> tuple[list[Any], list[Any]]:
    """The models of transformers and of this package in an object, outer ones first.

    Also the models of sentence-transformers.
    """
    seen: set[int] = set()
    parts: dict[nn.Module, None] = {}
    level = [holder]
    for _ in range(DEPTH + 1):
        following: list[Any] = []
        for entry in level:
            if id(entry) in seen or isinstance(entry, type):
                continue
            seen.add(id(entry))
            if isinstance(entry, nn.Module):
                parts |= dict.fromkeys(entry.modules())
            elif hasattr(entry, "__dict__"):
                following.extend(vars(entry).values())
        level = following
    base: Any = getattr(sys.modules.get("sentence_transformers.base.model"), "BaseModel", ())
    return (
        [part for part in parts if isinstance(part, PreTrainedModel)],
        [part for part in parts if isinstance(part, base)],  # none if it is not imported
    )
