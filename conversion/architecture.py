"""Which model a checkpoint holds, and whether a config fits it: from names and shapes alone."""

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
from .planning import Plan, listing
from .rules import Operation

#: The modules of a head whose presence tells it: masked-LM, and the linear layers.
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


@dataclass(frozen=True)
class Architecture:
    """What the names and shapes of a checkpoint say of its model."""

    class_name: str
    reason: str
    """Why this class, in words for the report."""
    num_labels: int | None
    """Rows of the classifier; None for a class without one."""
    sizes: dict[str, int]
    """The sizes that its tensors show, by their names in a config. The number of attention heads is
    rarely among them."""


def infer(plan: Plan, config: Mapping[str, Any], head: str | None = None) -> Architecture:
    """Infer head, labels and sizes.

    The head is the one asked for; else the one that the config's `architectures` names, if the
    checkpoint has just its parts; else the one whose parts are there, so that nothing is lost.

    Args:
        plan: The plan of the whole checkpoint, from `planning.plan`.
        config: The config that came with it; may be empty.
        head: A key of `HEADS`, a class name, or None.

    Raises:
        InputError: No such head, parts of several heads, or no BERT encoder.
    """
    infos = plan.tensors
    class_name, reason = _class(plan, config, head)
    words = f"{names.WORDS}.weight"
    if words not in infos:
        others = listing(infos, "other tensor", most=5)
        given = f"the checkpoint has no word embeddings, but {others}"
        raise InputError(given, words, "give all files of the checkpoint")
    query, operation = plan.origins.get(
        f"{_FIRST_LAYER}.attention.self.query.weight", ("", Operation.IDENTITY)
    )
    # Known where the software keeps the heads apart: (in, heads, head size).
    apart = operation is Operation.MERGE_OUT
    sizes = {
        "vocab_size": _size(infos, words),
        "hidden_size": _size(infos, words, axis=1),
        "num_hidden_layers": _layers(infos),
        "num_attention_heads": plan.sources[query].shape[1] if apart else None,
        "intermediate_size": _size(infos, f"{_FIRST_LAYER}.intermediate.dense.weight"),
        "max_position_embeddings": _positions(plan),
        "type_vocab_size": _size(infos, f"{names.TOKEN_TYPES}.weight"),
    }
    shown = {name: size for name, size in sizes.items() if size is not None}
    counted = class_name in ("BertForSequenceClassification", "BertForTokenClassification")
    labels = _size(infos, f"{names.CLASSIFIER}.weight") if counted else None
    return Architecture(class_name, reason, labels, shown)


def check_config(config: Mapping[str, Any], architecture: Architecture) -> dict[str, Any]:
    """Check a config against its checkpoint.

    Args:
        config: The config that came with the checkpoint; fields may be absent.
        architecture: What the tensors say.

    Returns:
        A new config: the given one, with the sizes that it lacked and the number of labels.

    Raises:
        InputError: Sizes that differ, or a number of attention heads that is absent or does
            not divide the hidden size.
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
        remedy = "give the config that belongs to this checkpoint"
        layers, held = config.get("num_hidden_layers"), sizes["num_hidden_layers"]
        if isinstance(layers, int) and layers > held:
            remedy += f"; the layers from {held} on may be in files that are not there"
        given = f"the config does not fit the tensors: it says {', '.join(wrong)}"
        raise InputError(given, "the sizes that the tensors have", remedy)
    full = {**sizes, **config}
    heads = full.get("num_attention_heads")
    if heads is None:
        raise InputError(
            "nothing says how many attention heads the model has",
            "num_attention_heads in a config beside the weights (tensors do not show it)",
            "give `num_attention_heads`, or a config with `config`",
        )
    width = sizes["hidden_size"]
    if not isinstance(heads, int) or heads < 1 or width % heads:
        expected = f"a whole number that divides the hidden size {width}"
        remedy = "give the number that the model was trained with"
        raise InputError(f"num_attention_heads is {heads!r}", expected, remedy)
    if architecture.num_labels is not None and labels is None:
        full["num_labels"] = architecture.num_labels
    return full


@dataclass(frozen=True)
class Fit:
    """A plan cut to one class."""

    tensors: dict[str, Tensor]
    """The tensors of the class that the checkpoint has, by the class's names, in its order."""
    origins: dict[str, tuple[str, Operation]]
    """As in the plan."""
    ignored: dict[str, str]
    """Names of the source that are left out, with the reason."""
    missing: list[str]
    """Names that the class has and the checkpoint lacks."""


def fit(plan: Plan, class_name: str, config: Mapping[str, Any]) -> Fit:
    """Cut a plan to one class: its tensors, under its names, in its order.

    Tensors that the class lacks become ignored ones. Tied tensors are left out, as transformers
    does; where `tie_word_embeddings` is false in the config they stay, and one that is not stored
    is filled from the one that it would be tied to.

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
    found = Fit({}, {}, dict(plan.ignored), [])
    wrong = []
    for name, shape in shapes.items():
        ours = prefix + name if prefix + name in plan.tensors else partners.get(prefix + name, "")
        if ours not in plan.tensors:
            found.missing.append(name)
        elif plan.tensors[ours].shape != shape:
            given = tuple(plan.tensors[ours].shape)
            wrong.append(f"{plan.origins[ours][0]} gives {given} for {name} {shape}")
        else:
            found.tensors[name], found.origins[name] = plan.tensors[ours], plan.origins[ours]
    if wrong:
        raise InputError(
            f"{len(wrong)} of the tensors have a wrong shape ({'; '.join(wrong[:3])}"
            + ("; …)" if wrong[3:] else ")"),
            f"the shapes of {class_name} with this config",
            "give the config that belongs to this checkpoint, or another `head`",
        )
    used = {source for source, _ in found.origins.values()}
    for name, (source, _) in plan.origins.items():
        if source not in used:
            reason = f"tied to {tied[name]}" if name in tied else f"not part of {class_name}"
            found.ignored[source] = reason
    return found


def _class(plan: Plan, config: Mapping[str, Any], head: str | None) -> tuple[str, str]:
    if head is not None:
        return class_of(head), "asked for"
    parts = {part for part in _PARTS if any(name.startswith(f"{part}.") for name in plan.tensors)}
    named = config.get("architectures")
    for name in named if isinstance(named, list) else []:
        class_name = re.sub("^(TF|Flax)", "", str(name))
        if _PARTS_OF.get(class_name) == parts:
            return class_name, "named in the config"
    what = " and ".join(sorted(parts)) or "no head"
    if parts == {names.CLASSIFIER}:
        return _classifier(plan)
    if parts == {"cls.predictions"} and config.get("is_decoder") is True:
        return "BertLMHeadModel", "masked-LM head of a decoder"
    for class_name, own in _PARTS_OF.items():
        if own == parts:
            return class_name, f"the checkpoint has {what}"
    remedy = f"choose one with `head` ({', '.join(HEADS)}); the others are left out"
    raise InputError(f"the checkpoint has parts of several heads ({what})", "one head", remedy)


def _classifier(plan: Plan) -> tuple[str, str]:
    pooler = f"{names.POOLER}.weight"
    if pooler not in plan.tensors:
        return "BertForTokenClassification", "a classifier and no pooler"
    # Google's token classifiers keep the pooler, but what is not used gets no optimizer slots.
    if _has_slots(plan, f"{names.CLASSIFIER}.weight") and not _has_slots(plan, pooler):
        return "BertForTokenClassification", "a classifier, trained without the pooler"
    return "BertForSequenceClassification", "a classifier and a pooler"


def _has_slots(plan: Plan, target: str) -> bool:
    source = plan.origins[target][0]
    return any(name.startswith(f"{source}/") for name in plan.ignored)


def _size(infos: Mapping[str, Tensor], name: str, axis: int = 0) -> int | None:
    """One side of a matrix; None if it is not there."""
    if name not in infos:
        return None
    shape = infos[name].shape
    if len(shape) != 2:
        given = f"{name} has the shape {shape}"
        raise InputError(given, "two axes", "give the checkpoint of a BERT")
    return shape[axis]


def _layers(infos: Mapping[str, Tensor]) -> int:
    layers = {int(match[1]) for name in infos if (match := _LAYER.match(name))}
    if gaps := [str(n) for n in range(max(layers, default=-1)) if n not in layers]:
        more = f" and {len(gaps) - 10} more" if gaps[10:] else ""
        given = f"the checkpoint has layer {max(layers)}, but not {', '.join(gaps[:10])}{more}"
        raise InputError(given, "all layers from 0 on", "give all files of the checkpoint")
    return len(layers)


def _positions(plan: Plan) -> int | None:
    for name in plan.ignored:  # codertimo's computed table, (1, positions, hidden size)
        if name.endswith("position.pe") and len(plan.sources[name].shape) == 3:
            return plan.sources[name].shape[1]
    return _size(plan.tensors, f"{names.POSITIONS}.weight")


def _target_shapes(
    class_name: str, config: Mapping[str, Any], held: int
) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """State-dict names and shapes of a class without its tied tensors, and what these are tied to.

    The class itself is asked: it is built without memory for its weights. `held` is the bytes that
    the checkpoint has of them.
    """
    import hf_bert_impl
    from hf_bert_impl.model.loading import check_size

    try:
        fields = hf_bert_impl.BertConfig.from_dict(dict(config))
        with torch.device("meta"):
            model = getattr(hf_bert_impl, class_name)(fields)
        check_size(model, held, "the checkpoint")
    except (ValueError, TypeError, AttributeError, StrictDataclassError) as error:
        given = f"the config cannot be used ({one_line(error)[:300]})"
        raise InputError(given, "the fields of a BertConfig", "mend the config") from error
    tied = dict(model._tied_weights_keys or {}) if fields.tie_word_embeddings else {}
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    return {name: shape for name, shape in shapes.items() if name not in tied}, tied
