"""PyTorch: transformers (all releases) and its ancestor pytorch_pretrained_bert.

Both have the names of this package. The ancestor (up to 2018's 0.3) calls a LayerNorm's weight and
bias gamma and beta, and stores the tied decoder's weight without a bias. transformers 4 stores both
in `.bin` files, and omits both from safetensors. A bare encoder has no `bert.` before its names;
wrappers and training loops add their own prefixes.
"""

import torch

from ..rules import Ignore, Rule, Table
from . import names

LINEARS = (
    *names.LINEARS,
    *names.HEADS,
    # Attention of a decoder to an encoder's output (transformers' encoder-decoder models).
    *(name.replace("attention", "crossattention") for name in names.LINEARS[:4]),
)
NORMS = (*names.NORMS, f"{names.LAYER}.crossattention.output.LayerNorm")
# Relative positions of transformers 4: one table per layer.
EMBEDDINGS = (*names.EMBEDDINGS, f"{names.LAYER}.attention.self.distance_embedding")


def _name(name: str) -> str:
    return "[{wrapper}]" + name.replace("bert.", "[{base}]")


def _same(name: str) -> Rule:
    return Rule(_name(name), name)


def _norms(scale: str, shift: str) -> tuple[Rule, ...]:
    return tuple(
        Rule(_name(f"{norm}.{theirs}"), f"{norm}.{ours}")
        for norm in NORMS
        for theirs, ours in ((scale, "weight"), (shift, "bias"))
    )


COMMON = (
    *(_same(f"{name}.weight") for name in (*EMBEDDINGS, *LINEARS)),
    *(_same(f"{name}.bias") for name in LINEARS),
    _same(names.SCORES_BIAS),
    _same(f"{names.DECODER}.weight"),
    _same(f"{names.DECODER}.bias"),
    *_norms("weight", "bias"),
)

IGNORES = (
    Ignore(
        _name("bert.embeddings.position_ids"),
        "a buffer that holds 0, 1, 2, …",
        lambda shape: torch.arange(shape[-1]).expand(shape) if shape else torch.zeros(()),
    ),
    Ignore(_name("bert.embeddings.token_type_ids"), "a buffer that holds zeros", torch.zeros),
    Ignore("{training}.{any}", "state of the optimizer or its schedule"),
)

SLOTS = {
    # DataParallel, torch.compile, Lightning, and dicts of training loops.
    "wrapper": r"(?:(?:module|_orig_mod|model|state_dict|model_state_dict)\.)+",
    "base": r"bert\.",
    "training": "(?:optimizer|lr_scheduler|scheduler)[a-z_]*",
    "any": ".+",
}


TRANSFORMERS = Table(
    software="transformers (PyTorch)",
    rules=COMMON,
    ignores=IGNORES,
    slots=SLOTS,
)

PYTORCH_PRETRAINED_BERT = Table(
    software="pytorch_pretrained_bert (PyTorch)",
    rules=(*COMMON, *_norms("gamma", "beta")),
    ignores=IGNORES,
    slots=SLOTS,
)
