"""`optimize`: a loaded BERT, or a model of a family like it, becomes fast, whatever holds it."""

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
from hf_bert_impl.model.kernels import check_dtype, check_weights
from hf_bert_impl.model.linear import type_name

Holder = TypeVar("Holder")
#: How deep a model may lie in objects that are no modules: KeyBERT has one in its backend.
DEPTH = 3


def optimize(model: Holder, dtype: str | torch.dtype | None = "auto") -> Holder:
    """Makes a loaded BERT, or a model like it, compute without padding and with packed weights.

    Every stock BERT in `model` gets this package's classes. The objects and their weights stay the
    same, so everyone who has them keeps them, and each is prepared for inference
    (`BertPreTrainedModel.prepare_for_inference`). Models of RoBERTa, XLM-R, CamemBERT,
    data2vec-text, ELECTRA, DistilBERT and MPNet keep their classes; the `forward` of the bare model
    is replaced (`families.adapter.Forward`). The loops of sentence-transformers take batches
    of as many tokens as pay, unless a call names a `batch_size`, and a `SparseEncoder` makes its
    vectors without the scores of all tokens (`splade_vectors`).

    Results are stock's within rounding, 1e-5 in float32, at attended positions; states at padding
    are zero. The model is in eval mode then. `train()` drops the packed weights and brings the
    original ones back. `save_pretrained` writes a plain folder with the original weights, whatever
    the dtype; copies and pickles of it are prepared like it. To call it again packs the weights
    anew, with the dtype of that call.

    Args:
        model: Anything that holds a BERT of transformers or of this package: one of the nine
            models, a `SentenceTransformer`, `CrossEncoder`, `SparseEncoder` or
            `MultiVectorEncoder`, a pipeline, a SetFit, KeyBERT or PEFT model, a module of yours.
        dtype: As in `prepare_for_inference`: "float32", "bfloat16", "float16", "int8",
            "float16-weights", a dtype of torch, "auto" for the quickest float that this CPU has
            kernels for, or None to keep the weights' own. bfloat16 converts the weights, as
            `state_dict()` shows; the original ones are kept, in memory and in pickles, for
            `save_pretrained`, `train()` and `restore`. An adapter that PEFT saves has the dtype
            that it computes in: `restore` comes first.

    Returns:
        `model` itself.

    Raises:
        InputError: It holds none of these, or one with modules of its own in it. Nothing has
            changed then.
        ValueError: The dtype is unknown, weights are on the meta device or quantised by torch, or
            `HF_BERT_KERNELS` names kernels that there are not. Nothing has changed then.

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
    except BaseException:  # HF_BERT_KERNELS may name kernels that there are not
        restore(model)
        raise
    return model


def restore(model: Holder) -> Holder:
    """Undoes `optimize`: the same objects have their own classes again, and compute what they did.

    What was learned or loaded in the meantime stays. Without `optimize` before it, packed weights
    are dropped and nothing else happens.

    Args:
        model: What was given to `optimize`.

    Returns:
        `model` itself.
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
    """The outermost modules that an object has, itself if it is one."""
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
    """The encoders among modules and in them, without those that are the body of another."""
    parts = dict.fromkeys(part for module in modules for part in module.modules())
    berts = [part for part in parts if in_place.is_bert(part) or family_of(part) is not None]
    bodies = {part for bert in berts for part in bert.modules() if part is not bert}
    return [bert for bert in berts if bert not in bodies]


def _sentence_models(modules: list[nn.Module]) -> list[Any]:
    """The models of sentence-transformers among modules and in them."""
    base = getattr(sys.modules.get("sentence_transformers.base.model"), "BaseModel", None)
    if base is None:  # whoever holds one has imported it; before version 6 there is no such class
        return []
    return [part for module in modules for part in module.modules() if isinstance(part, base)]


def _callers(encoders: list[Any], bert: nn.Module) -> list[nn.Module]:
    """The modules of sentence-transformers that call a BERT's `forward`, past its hooks."""
    parts = {part: None for encoder in encoders for part in encoder.modules()}
    return [part for part in parts if getattr(part, "model", None) is bert]


def _instead(modules: list[nn.Module]) -> str:
    """What models there are, for a message."""
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
