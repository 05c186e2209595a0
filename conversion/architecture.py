"""The class and sizes of a checkpoint's model, from names and shapes, and the fit of a config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor

from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.head_names import HEADS, class_of

from .maps import names
from .planning import Plan
from .rules import Operation

#: The modules that identify a head: masked-LM, and the linear layers.
_PARTS = ("cls.predictions", *names.HEADS)
_PARTS_OF = {
    "BertModel": set(),
    "BertForPreTraining": {"cls.predictions", names.NEXT_SENTENCE},
    "BertForMaskedLM": {"cls.predictions"},
    "BertLMHeadModel": {"cls.predictions"},
    "BertForNextSentencePrediction": {names.NEXT_SENTENCE},
    "BertForSequenceClassification": {names.CLASSIFIER},
    "BertForMultipleChoice": {names.CLASSIFIER},
    "BertForTokenClassification": {names.CLASSIFIER},
    "BertForQuestionAnswering": {names.ANSWERS},
}
_LAYER = re.compile(r"bert\.encoder\.layer\.([0-9]+)\.")
_FIRST_LAYER = names.LAYER.format(layer=0)
_WORDS = f"{names.WORDS}.weight"


@dataclass(frozen=True)
class Architecture:
    """The model that names and shapes of a checkpoint show."""

    class_name: str
    reason: str
    """Why this class, in words for the report."""
    num_labels: int | None
    """Rows of the classifier; None for a class without one."""
    sizes: dict[str, int]
    """The sizes of its tensors, by their names in a config. Tensors rarely show the number of
    attention heads."""


def infer(plan: Plan, config: Mapping[str, Any], head: str | None = None) -> Architecture:
    """Infer head, labels and sizes.

    The head is the requested one, or else the one in the config's `architectures`, if the
    checkpoint has exactly its parts. Otherwise the parts in the checkpoint decide.

    Args:
        plan: The plan of the whole checkpoint, from `planning.plan`.
        config: The checkpoint's config; may be empty.
        head: A key of `HEADS`, a class name, or None.

    Raises:
        InputError: No such head, parts of several heads, or layers are missing.
    """
    tensors = plan.tensors
    class_name, reason = _class(plan, config, head)
    query, operation = plan.origins.get(
        f"{_FIRST_LAYER}.attention.self.query.weight", ("", Operation.IDENTITY)
    )
    # MERGE_OUT: the software stores (in, heads, head size).
    has_heads = operation is Operation.MERGE_OUT
    sizes = {
        "vocab_size": _size(tensors, _WORDS),
        "hidden_size": _size(tensors, _WORDS, axis=1),
        "num_hidden_layers": _layers(tensors),
        "num_attention_heads": plan.sources[query].shape[1] if has_heads else None,
        "intermediate_size": _size(tensors, f"{_FIRST_LAYER}.intermediate.dense.weight"),
        "max_position_embeddings": _positions(plan),
        "type_vocab_size": _size(tensors, f"{names.TOKEN_TYPES}.weight"),
    }
    shown = {name: size for name, size in sizes.items() if size is not None}
    counted = class_name in ("BertForSequenceClassification", "BertForTokenClassification")
    labels = _size(tensors, f"{names.CLASSIFIER}.weight") if counted else None
    return Architecture(class_name, reason, labels, shown)


def check_config(config: Mapping[str, Any], architecture: Architecture) -> dict[str, Any]:
    """Check a config against its checkpoint.

    Args:
        config: The checkpoint's config; fields may be absent.
        architecture: The result of `infer`.

    Returns:
        A copy of the config, with the missing sizes and the number of labels.

    Raises:
        InputError: Sizes differ, or the number of attention heads is absent or does not divide the
            hidden size.
    """
    sizes = architecture.sizes
    wrong = [
        f"{name} {config[name]!r} (the tensors have {size})"
        for name, size in sizes.items()
        if name in config and config[name] != size
    ]
    named = config.get("id2label")
    labels = len(named) if isinstance(named, Mapping) else config.get("num_labels")
    if None not in (labels, architecture.num_labels) and labels != architecture.num_labels:
        wrong.append(f"{labels} labels (the tensors have {architecture.num_labels})")
    if wrong:
        raise InputError(
            f"The config does not fit the tensors: it has {', '.join(wrong)}. "
            "Give all files of the checkpoint, and its own config."
        )
    full = {**sizes, **config}
    heads, width = full.get("num_attention_heads"), sizes["hidden_size"]
    if heads is None:
        raise InputError(
            "The number of attention heads is unknown. Give `num_attention_heads`, or a config "
            "with `config`.",
            "num_attention_heads config",
        )
    if not isinstance(heads, int) or heads < 1 or width % heads:
        raise InputError(
            f"num_attention_heads is {heads!r}, which does not divide the hidden size {width}. "
            "Give the number that the model was trained with.",
            "num_attention_heads",
        )
    if architecture.num_labels is not None and labels is None:
        full["num_labels"] = architecture.num_labels
    return full


@dataclass(frozen=True)
class Fit:
    """A plan cut to one class."""

    tensors: dict[str, Tensor]
    """The checkpoint's tensors of the class, by the class's names, in its order."""
    origins: dict[str, tuple[str, Operation]]
    """As in the plan."""
    ignored: dict[str, str]
    """Names of the source without a place in the class, with the reason."""
    missing: list[str]
    """Names of the class that the checkpoint lacks."""


def fit(plan: Plan, class_name: str, config: Mapping[str, Any]) -> Fit:
    """Cut a plan to one class: its tensors, under its names, in its order.

    Other tensors are ignored. Tied tensors are omitted, as in transformers; with
    `tie_word_embeddings` false they stay, and a missing one is copied from its partner.

    Args:
        plan: The plan of the whole checkpoint, from `planning.plan`.
        class_name: A value of `HEADS`.
        config: A complete config, from `check_config`.

    Raises:
        InputError: The config has values out of range, or tensors have other shapes than the
            class's.
    """
    held = sum(tensor.numel() * tensor.itemsize for tensor in plan.tensors.values())
    shapes, tied = _target_shapes(class_name, config, held)
    prefix = "bert." if class_name == "BertModel" else ""
    partners = {**names.TIED, **{base: name for name, base in names.TIED.items()}}
    fitted = Fit({}, {}, dict(plan.ignored), [])
    wrong = []
    for name, shape in shapes.items():
        ours = prefix + name if prefix + name in plan.tensors else partners.get(prefix + name, "")
        if ours not in plan.tensors:
            fitted.missing.append(name)
        elif plan.tensors[ours].shape != shape:
            given = tuple(plan.tensors[ours].shape)
            wrong.append(f"{plan.origins[ours][0]} has {given}, and {name} {shape}")
        else:
            fitted.tensors[name], fitted.origins[name] = plan.tensors[ours], plan.origins[ours]
    if wrong:
        raise InputError(
            f"{len(wrong)} shapes do not fit {class_name} with this config "
            f"({'; '.join(wrong[:3])}). Give the checkpoint's own config, or another `head`.",
            "head",
        )
    used = {source for source, _ in fitted.origins.values()}
    for name, (source, _) in plan.origins.items():
        if source not in used:
            reason = f"tied to {tied[name]}" if name in tied else f"not part of {class_name}"
            fitted.ignored[source] = reason
    return fitted


def _class(plan: Plan, config: Mapping[str, Any], head: str | None) -> tuple[str, str]:
    if head is not None:
        return class_of(head), "requested"
    parts = {part for part in _PARTS if any(name.startswith(f"{part}.") for name in plan.tensors)}
    named = config.get("architectures")
    for name in named if isinstance(named, list) else []:
        class_name = re.sub("^(TF|Flax)", "", str(name))
        if _PARTS_OF.get(class_name) == parts:
            return class_name, "named in the config"
    listed = " and ".join(sorted(parts)) or "no head"
    if parts == {names.CLASSIFIER}:
        return _classifier(plan)
    if parts == {"cls.predictions"} and config.get("is_decoder") is True:
        return "BertLMHeadModel", "masked-LM head of a decoder"
    for class_name, own in _PARTS_OF.items():
        if own == parts:
            return class_name, f"the checkpoint has {listed}"
    raise InputError(
        f"The checkpoint has parts of several heads ({listed}). "
        f"Choose one with `head` ({', '.join(HEADS)}).",
        "head",
    )


def _classifier(plan: Plan) -> tuple[str, str]:
    pooler = f"{names.POOLER}.weight"
    if pooler not in plan.tensors:
        return "BertForTokenClassification", "a classifier and no pooler"
    # Google's token classifiers store the pooler, but unused weights get no optimizer slots.
    if _has_slots(plan, f"{names.CLASSIFIER}.weight") and not _has_slots(plan, pooler):
        return "BertForTokenClassification", "a classifier, trained without the pooler"
    return "BertForSequenceClassification", "a classifier and a pooler"


def _has_slots(plan: Plan, target: str) -> bool:
    source = plan.origins[target][0]
    return any(name.startswith(f"{source}/") for name in plan.ignored)


def _size(tensors: Mapping[str, Tensor], name: str, axis: int = 0) -> int | None:
    """One side of a matrix; None if it is missing."""
    if name not in tensors:
        return None
    shape = tensors[name].shape
    if len(shape) != 2:
        raise InputError(f"{name} has shape {tuple(shape)}, not two axes. Use a BERT checkpoint.")
    return shape[axis]


def _layers(tensors: Mapping[str, Tensor]) -> int:
    layers = {int(match[1]) for name in tensors if (match := _LAYER.match(name))}
    if gaps := set(range(max(layers, default=0))) - layers:
        raise InputError(
            f"The checkpoint has layer {max(layers)}, but not {min(gaps)}. "
            "Give all files of the checkpoint."
        )
    return len(layers)


def _positions(plan: Plan) -> int | None:
    for name in plan.ignored:  # codertimo's computed table, (1, positions, hidden size)
        if name.endswith("position.pe") and len(plan.sources[name].shape) == 3:
            return plan.sources[name].shape[1]
    return _size(plan.tensors, f"{names.POSITIONS}.weight")


def _target_shapes(
    class_name: str, config: Mapping[str, Any], held: int
) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """State-dict names and shapes of a class without its tied tensors, and their partners.

    The class is built without memory for its weights. `held` is the size of the checkpoint's
    weights in bytes.
    """
    import hf_bert_impl
    from hf_bert_impl.checkpoint_files import check_model_size

    try:
        fields = hf_bert_impl.BertConfig.from_dict(dict(config))
        check_model_size(
            fields.to_dict() | {"num_labels": fields.num_labels}, held, "the checkpoint"
        )
        with torch.device("meta"):
            model = getattr(hf_bert_impl, class_name)(fields)
    except (ValueError, TypeError, AttributeError, StrictDataclassError) as error:
        problem = f"The config cannot be used ({one_line(error)[:300]})"
        raise InputError(
            f"{problem}. Correct it, or give another with `config`.", "config"
        ) from error
    tied = dict(model._tied_weights_keys or {}) if fields.tie_word_embeddings else {}
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    return {name: shape for name, shape in shapes.items() if name not in tied}, tied
