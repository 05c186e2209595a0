"""Finds encoders in a model, and proves on a few tokens that packed rows compute them."""

import sys
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import GELUActivation

from hf_bert_impl.encoders.forward import (
    BY_ALL,
    BY_FIRST,
    BY_ROWS,
    Forward,
    has_forward,
    put_in_place,
    remove,
)
from hf_bert_impl.encoders.inside import (
    FollowingGelu,
    PackedLinear,
    activated,
    counts_from,
    shares,
)
from hf_bert_impl.encoders.rows import NotByRows
from hf_bert_impl.model.linear import FloatProduct, computed_by, has_onednn

#: Tokens of the probe: more than a window.
TOKENS = 7
#: The largest difference, as a share of the largest number of an output that is above 1.
AGREES = {torch.float32: 1e-4, torch.float64: 1e-4}
AGREES_IN_HALF = 1e-2


def why_not(model: nn.Module) -> str | None:
    """Why a module is no encoder of transformers that packed rows may compute; or None.

    `probe` decides.
    """
    if not isinstance(model, PreTrainedModel):
        return "is no model of transformers"
    bare: Any = model.base_model
    if has_forward(bare):
        return None
    if getattr(model.config, "is_decoder", False) or getattr(
        model.config, "is_encoder_decoder", False
    ):
        return "is a decoder"
    if not {"input_ids", "attention_mask"} <= set(Forward(bare).names):
        return "takes no input_ids and attention_mask"
    homes = [vars(sys.modules[kind.__module__]) for kind in type(bare).__mro__[:-1]]
    if not any("ALL_ATTENTION_FUNCTIONS" in home for home in homes) and not _is_mpnet(bare):
        return "does not attend by transformers' AttentionInterface"
    if any("forward" in vars(part) for part in (model, bare)):
        return "has a replaced forward; call optimize before that"
    return None


def _is_mpnet(bare: Any) -> bool:
    return bool(bare.config.model_type == "mpnet")


def probe(model: Any) -> str | None:
    """Puts packed rows in place if they agree with stock's `forward`.

    Args:
        model: An encoder, with a head or without.

    Returns:
        The reason why the model stays as it is, or None.
    """
    reason = why_not(model)
    if reason is not None or has_forward(model):
        return reason
    bare = model.base_model
    with torch.no_grad(), _quiet(model):
        parts = [(Forward(part), batch_of(part)) for part in dict.fromkeys((bare, model))]
        outputs = [forward.stock(**batch, return_dict=True) for forward, batch in parts]
        for (forward, batch), expected in zip(parts, outputs, strict=True):
            put_in_place(forward.model, forward)
            forward.inside.wrap()
            for reads in (BY_ROWS,) if forward.is_bare else (BY_ROWS, BY_FIRST, BY_ALL):
                forward.reads = reads
                reason = _difference(forward, batch, expected)
                if reason is None:
                    break
            else:
                remove(model)
                return reason
            if forward.is_bare and has_onednn() and model.device.type == "cpu":
                _fuse(forward, batch, expected)
    return None


def _fuse(forward: Forward, batch: dict[str, Tensor], expected: Any) -> None:
    """Computes layers of a bare model together that get the same states, and GELUs with the layer.

    The model's own `forward` shows which: an activation has to get the very output of a layer.
    """
    together, following = _observed(forward, batch)
    products: dict[Any, Any] = {}
    for holder, names in together:
        layers: Any = [holder._modules[name] for name in names]
        products |= shares(FloatProduct(layers, 0, 0), layers)
    for gelu, holder, name in following:
        layer: Any = holder._modules[name]
        gelu.__class__, vars(gelu)["after"] = FollowingGelu, name
        if layer not in products:
            products[layer] = FloatProduct([layer], 0, 0)
    products |= activated(products, forward.bare.modules())
    with computed_by(products):
        reason = _difference(forward, batch, expected)
    if reason is None:
        forward.together = together
        return
    for gelu, _, _ in following:
        gelu.__class__ = GELUActivation
        del vars(gelu)["after"]


def _observed(forward: Forward, batch: dict[str, Tensor]) -> tuple[list[Any], list[Any]]:
    """Layers of a module that get the same states, and GELUs that get a layer's output."""
    bare = forward.bare
    holders = {
        child: (module, name)
        for module in bare.modules()
        for name, child in module._modules.items()
    }
    calls: list[tuple[nn.Module, Tensor, Tensor]] = []

    def note(module: nn.Module, inputs: Any, output: Tensor) -> None:
        calls.append((module, *inputs, output))

    for part in bare.modules():
        if type(part) in (PackedLinear, GELUActivation):
            part.register_forward_hook(note)  # `_quiet` removes it
    forward.stock(**batch)
    groups: dict[Any, list[str]] = {}
    following = []
    for number, (part, states, _) in enumerate(calls):
        holder, name = holders[part]
        if type(part) is PackedLinear:
            groups.setdefault((holder, id(states)), []).append(name)
            continue
        before, _, output = calls[number - 1]
        if number and output is states and holders[before][0] is holder:
            following.append((part, holder, holders[before][1]))
    counts = Counter(part for part, _, _ in calls)
    shared = [(holder, tuple(names)) for (holder, _), names in groups.items() if len(names) > 1]
    return (
        [each for each in shared if all(counts[each[0]._modules[name]] == 1 for name in each[1])],
        [each for each in following if counts[each[0]] == 1],
    )


@contextmanager
def _quiet(model: nn.Module) -> Iterator[None]:
    """Eval mode without hooks, which must not see the probe."""
    states = [vars(part) for part in model.modules()]
    names = ("training", "_forward_hooks", "_forward_pre_hooks")
    before = [[state[name] for name in names] for state in states]
    for state in states:
        state.update(zip(names, (False, OrderedDict(), OrderedDict()), strict=True))
    try:
        yield
    finally:
        for state, values in zip(states, before, strict=True):
            state.update(zip(names, values, strict=True))


def batch_of(model: Any) -> dict[str, Tensor]:
    """Random rows without padding, with padding on either side, and with holes."""
    config, bare = model.config, model.base_model
    length, padding = TOKENS, getattr(config, "pad_token_id", None) or 0
    window = getattr(config, "sliding_window", None)
    limit = getattr(config, "max_position_embeddings", None) or sys.maxsize
    length = min(length + (window or 0), limit - (counts_from(bare) or 0) - 1)
    mask = torch.ones(4, length, dtype=torch.long)
    mask[1, : length // 3] = mask[2, length // 2 :] = mask[3, 1::3] = 0
    generator = torch.Generator().manual_seed(0)
    vocabulary = bare.get_input_embeddings().weight.shape[0]
    ids = torch.randint(vocabulary - 1, mask.shape, generator=generator)
    ids += ids >= padding  # any token but padding
    ids = ids.masked_fill(mask == 0, padding)
    if "MultipleChoice" in type(model).__name__:
        ids, mask = ids.view(2, 2, -1), mask.view(2, 2, -1)
    return {"input_ids": ids.to(model.device), "attention_mask": mask.to(model.device)}


def _difference(forward: Forward, batch: dict[str, Tensor], expected: Any) -> str | None:
    """Why the outputs of packed rows differ from stock's, or None."""
    given = batch | {"return_dict": True}
    try:
        # In any case by rows: now is the time to see whether that is right.
        found = forward.by_rows(given) if forward.reads == BY_ROWS else forward(**given)
    except NotByRows as error:
        return f"uses {error}"
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        return f"fails with packed rows ({str(error).splitlines()[0] if str(error) else error!r})"
    mask = batch["attention_mask"].flatten(0, -2)
    for name, theirs in expected.items():
        ours = found.get(name)
        if not isinstance(theirs, Tensor):
            continue
        if ours is None or ours.shape != theirs.shape:
            return f"has other {name} with packed rows"
        if theirs.shape[:2] == mask.shape:
            ours, theirs = ours[mask != 0], theirs[mask != 0]
        limit = AGREES.get(theirs.dtype, AGREES_IN_HALF) * max(1.0, float(theirs.abs().max()))
        gap = float((ours - theirs).abs().max())
        if not gap <= limit:
            return f"has other {name} with packed rows (by {gap:.1e})"
    return None
