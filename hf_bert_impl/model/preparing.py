"""The preparation of a model for inference: which layers are packed, and by which kernels."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers.utils import logging

from .attention import BertSelfAttention
from .int8 import Form, try_forms
from .kernels import DTYPES, Kernels, choose, fastest_dtype, why_no_kernels
from .linear import Packed, set_packed, type_name, why_not_packed

logger = logging.get_logger(__name__)
#: The layers of self-attention that are packed as one.
SIDE_BY_SIDE = ("query", "key", "value")
#: int8 tries its forms on so many random sequences of so many tokens.
TRIED_SEQUENCES, TRIED_TOKENS = 4, 32


def prepare(model: Any, dtype: torch.dtype | str | None) -> None:
    """Does what `BertPreTrainedModel.prepare_for_inference` says.

    Args:
        model: A BERT of any head.
        dtype: As there.
    """
    check_dtype("dtype", dtype)
    check_weights(model)
    model.eval()
    invariant = model.config.batch_invariant
    precision = _convert(model, dtype)
    drop_prepared(model)
    reason = _why_not(model)
    if reason is not None:
        logger.warning(f"not prepared for inference: {reason}; it computes as usual")
        return
    if model.device.type != "cpu":
        return
    kernels = choose(precision or model.dtype, invariant)
    if dtype == "auto":
        logger.warning(f"dtype='auto' is {kernels} here")
    encoder = model.base_model.encoder
    places = [(kernels, *place) for place in packable(encoder, "encoder")]
    predictions = getattr(getattr(model, "cls", None), "predictions", None)
    heads = {"pooler": getattr(model.base_model, "pooler", None), "cls.predictions": predictions}
    of_head = choose(model.dtype, invariant)  # int8 is for the encoder alone
    for path, head in heads.items():
        if head is not None:
            places += [(of_head, *place) for place in packable(head, path)]
    forms = _forms(model, kernels) if kernels.dtype == torch.int8 else {}
    for chosen, holder, layers, path in places:
        reason = next(filter(None, map(why_not_packed, layers)), None)
        if reason is not None:
            logger.warning(f"not prepared for inference: {path} {reason}; it computes as usual")
            continue
        names = SIDE_BY_SIDE if len(layers) > 1 else ()
        set_packed(holder, Packed(chosen, names, forms.get(layers)))


@torch.no_grad()
def _forms(model: Any, kernels: Kernels) -> dict[tuple[Any, ...], Form]:
    """How int8 quantises the states of the encoder's layers, by random tokens."""
    config, encoder = model.config, model.base_model.encoder
    layers = [place[1] for place in packable(encoder, "")]
    plain = [each for each in layers if not any(map(why_not_packed, each))]
    tokens = min(TRIED_TOKENS, config.max_position_embeddings)
    generator, shape = torch.Generator("cpu").manual_seed(0), (TRIED_SEQUENCES, tokens)
    ids = torch.randint(config.vocab_size, shape, generator=generator, device="cpu")
    embeddings = model.base_model.embeddings(ids, None, torch.arange(tokens, device="cpu")[None])
    return try_forms(encoder, embeddings, plain, kernels.limit)


def _convert(model: Any, dtype: torch.dtype | str | None) -> torch.dtype | None:
    """Converts a model to the precision that it is prepared in; gives that, None for its own."""
    precision = precision_of(model, dtype)
    if precision not in (None, torch.int8):
        model.to(precision)
    elif precision is not None and model.device.type == "cpu":  # int8 is for linear layers alone
        model.to(torch.float32)
    return precision


def precision_of(model: Any, dtype: torch.dtype | str | None) -> torch.dtype | None:
    """The precision that a model is prepared in; None for its own."""
    is_on_cpu = model.device.type == "cpu"
    precision: Any = DTYPES.get(dtype, dtype) if isinstance(dtype, str) else dtype
    if dtype == "auto":
        precision = fastest_dtype(model.device)
    if is_on_cpu and precision in DTYPES.values():
        reason = why_no_kernels(precision)
        if reason is not None:  # an emulation would be many times slower
            logger.warning(f"{reason}, so the model computes in float32")
            precision = torch.float32
    if precision == torch.int8 and not is_on_cpu:
        place, kind = model.device.type, str(model.dtype).removeprefix("torch.")
        logger.warning(f"dtype={dtype!r} has no kernels on {place}; it computes in {kind}")
    return precision


def drop_prepared(model: nn.Module) -> None:
    """Discards what was packed for any part of the model."""
    for module in model.modules():
        if module.__dict__.get("packed") is not None:
            set_packed(module, None)


def prepared_kernels(model: Any) -> Kernels | None:
    """The kernels of a prepared model's encoder; None if none of its weights are packed."""
    for module in model.base_model.modules():
        packed = module.__dict__.get("packed")
        if isinstance(packed, Packed) and (packed.product is not None or packed.source is None):
            kernels: Kernels | None = packed.kernels  # of a copy, that it will pack by
            return kernels
    return None


def packable(root: nn.Module, path: str) -> Iterator[tuple[nn.Module, tuple[Any, ...], str]]:
    """Yields each place to pack: the module that holds it, its layers side by side, its path."""
    for name, module in root.named_modules(prefix=path):
        children = module._modules
        if isinstance(module, BertSelfAttention):
            layers = tuple(children[each] for each in SIDE_BY_SIDE)
            if not module.is_cross_attention:
                yield module, layers, name
        for child in ("dense", "decoder"):
            layer = children.get(child)
            if layer is not None:
                yield layer, (layer,), f"{name}.{child}"


def _why_not(model: Any) -> str | None:
    """Why a model cannot be packed on this machine; None if some of its layers can."""
    if not hasattr(getattr(model.base_model, "encoder", None), "layer"):
        return "it has no encoder of layers"
    is_on_cpu = model.device.type == "cpu"
    return why_no_kernels(model.dtype) if is_on_cpu else None


def check_dtype(name: str, dtype: Any, *others: bool) -> None:
    """Checks a precision that a model is to be prepared in.

    Args:
        name: Of the argument, for the message.
        dtype: A name, a dtype, or None for the precision of the weights.
        others: Further values that the argument may have.

    Raises:
        ValueError: It is none of them.
    """
    precision: Any = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if dtype in (None, "auto") or any(dtype is other for other in others):
        return
    is_type = isinstance(precision, torch.dtype)
    if not is_type or not (precision.is_floating_point or precision == torch.int8):
        known = ", ".join((*DTYPES, "auto", *map(str, others)))
        raise ValueError(f"{name}={dtype!r} is not known; use one of {known}")


def check_weights(model: nn.Module) -> None:
    """Checks that a model's weights are numbers that can be converted.

    Raises:
        ValueError: A weight has no memory, or torch has quantised a module already.
    """
    for path, module in model.named_modules():
        for name, weight in module._parameters.items():
            # accelerate keeps weights elsewhere, and its hook brings them for the call.
            if weight is not None and weight.is_meta and not hasattr(module, "_hf_hook"):
                raise ValueError(
                    f"{path}.{name} is on the meta device, which holds no numbers. Load the model "
                    "by from_pretrained first."
                )
        if hasattr(module, "_packed_params"):
            raise ValueError(
                f"{path} is a {type_name(type(module))}, whose weights are quantised already. Pass "
                "the model before quantisation, and dtype='int8' to quantise it."
            )
