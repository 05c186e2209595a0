"""`optimize`: makes a loaded BERT, or a similar model, fast in place."""

import sys
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch import nn

from hf_bert_impl import in_place
from hf_bert_impl.errors import InputError
from hf_bert_impl.families import adapter
from hf_bert_impl.families.table import FAMILIES, family_of
from hf_bert_impl.inference.packed_loop import use_own_loop, use_packed_loop
from hf_bert_impl.inference.sparse_encoder import SpladeFold, splade_folds
from hf_bert_impl.model.linear import type_name
from hf_bert_impl.model.preparing import check_dtype, check_weights

Holder = TypeVar("Holder")
#: Maximum depth of a model in objects other than modules, such as KeyBERT's backend.
DEPTH = 3


def optimize(model: Holder, dtype: str | torch.dtype | None = "auto") -> Holder:
    """Makes a loaded BERT, or a model like it, compute without padding and with packed weights.

    Every stock BERT in `model` gets this package's classes and is prepared for inference
    (`BertPreTrainedModel.prepare_for_inference`); objects and weights stay the same. Models of
    RoBERTa, XLM-R, CamemBERT, data2vec-text, ELECTRA, DistilBERT and MPNet keep their classes, with
    another `forward` (`families.adapter.Forward`). sentence-transformers then batches by tokens,
    unless a call sets `batch_size`. A `SparseEncoder` does not store the scores of all tokens
    (`splade_vectors`).

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
        InputError: It holds no supported model, or one with custom modules. It is unchanged.
        ValueError: The dtype is not supported, or weights are on the meta device or quantised by
            torch. The model is unchanged.

    Examples:
        >>> from sentence_transformers import SentenceTransformer
        >>> model = optimize(SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2"))
        >>> model.encode(["A cat naps."]).shape
        (1, 384)
    """
    check_dtype("dtype", dtype)
    modules = list(_modules(model))
    berts = _berts(modules)
    if not berts:
        known = ", ".join(("BERT", *(family.name for family in FAMILIES)))
        raise InputError(
            f"The {type_name(type(model))} holds no BERT{_instead(modules)}. Supported: "
            f"{known}, and objects that hold one."
        )
    for bert in berts:
        check_weights(bert)
    pairs = {bert: in_place.check(bert) for bert in berts if in_place.is_bert(bert)}
    others = {bert: adapter.check(bert) for bert in berts if bert not in pairs}
    encoders = _sentence_models(modules)
    try:
        for bert in berts:
            if bert in pairs:
                in_place.convert(bert, pairs[bert])
            else:
                adapter.put_in_place(bert, others[bert])
            in_place.prepare(bert, dtype, _callers(encoders, bert))
        for encoder in encoders:
            use_packed_loop(encoder)
            for fold in splade_folds(encoder):
                fold.enable()
    except BaseException:  # memory may be too small for the packed weights
        restore(model)
        raise
    return model


def restore(model: Holder) -> Holder:
    """Undoes `optimize`: the objects get their own classes again; trained weights stay.

    Args:
        model: The argument of `optimize`.

    Returns:
        `model` itself.

    Raises:
        InputError: A BERT has a wrapped forward, for example by accelerate.
    """
    modules = list(_modules(model))
    for encoder in _sentence_models(modules):
        use_own_loop(encoder)
        for module in encoder.modules():
            fold = getattr(vars(module).get("forward"), "__self__", None)
            if isinstance(fold, SpladeFold):
                fold.disable()
    for bert in _berts(modules):
        in_place.revert(bert)
    return model


def _modules(holder: Any) -> Iterator[nn.Module]:
    """The outermost modules in an object, or the object itself if it is one."""
    seen: set[int] = set()
    level = [holder]
    for _ in range(DEPTH + 1):
        following: list[Any] = []
        for entry in level:
            if id(entry) in seen or isinstance(entry, type):
                continue
            seen.add(id(entry))
            if isinstance(entry, nn.Module):
                yield entry
            elif hasattr(entry, "__dict__"):
                following.extend(vars(entry).values())
        level = following


def _berts(modules: list[nn.Module]) -> list[Any]:
    """The encoders in modules, except bodies of others."""
    parts = dict.fromkeys(part for module in modules for part in module.modules())
    berts = [part for part in parts if in_place.is_bert(part) or family_of(part) is not None]
    bodies = {part for bert in berts for part in bert.modules() if part is not bert}
    return [bert for bert in berts if bert not in bodies]


def _sentence_models(modules: list[nn.Module]) -> list[Any]:
    """The models of sentence-transformers in modules."""
    base = getattr(sys.modules.get("sentence_transformers.base.model"), "BaseModel", None)
    if base is None:  # not imported, or older than version 6
        return []
    return [part for module in modules for part in module.modules() if isinstance(part, base)]


def _callers(encoders: list[Any], bert: nn.Module) -> list[nn.Module]:
    """The modules of sentence-transformers that call a BERT's `forward` without hooks."""
    parts = {part: None for encoder in encoders for part in encoder.modules()}
    return [part for part in parts if getattr(part, "model", None) is bert]


def _instead(modules: list[nn.Module]) -> str:
    """The models in an object without BERT, for a message."""
    from transformers import PreTrainedModel

    kinds = {
        type(part)
        for module in modules
        for part in module.modules()
        if isinstance(part, PreTrainedModel)
    }
    names = " and ".join(sorted(map(type_name, kinds)))
    if any(base.__module__ == in_place.STOCK_HOME for kind in kinds for base in kind.__mro__[:-1]):
        names += ", a subclass with code of its own, which is left alone"
    return f" but {names}" if kinds else ""
