"""The attention masks, in the form of each backend.

Notation: B batch, S sequence, Q queries, K keys, D hidden size, T computed tokens (see
`layout.py`).
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_bert import BertConfig
from .inputs import is_mapped
from .layout import Layout

#: The installed transformers' name of a decoder's cache, in arguments and in outputs: `cache` from
#: 5.24 on, `past_key_values` before.
CACHE = {field.name for field in fields(BaseModelOutputWithPoolingAndCrossAttentions)}.intersection(
    ("cache", "past_key_values")
).pop()
#: Backends that take sequences of equal length without a mask, and that can add a position bias.
#: Others (flash attention, flex, one that a user registered) get a padded batch and its mask.
OWN_BACKENDS = ("eager", "sdpa")
_FUNCTIONS = {"sdpa": sdpa_attention_forward}


def is_own(backend: str | None) -> bool:
    """Whether it is one of `OWN_BACKENDS`, with the function that transformers has for it."""
    backend = backend or "eager"
    function = ALL_ATTENTION_FUNCTIONS.get(backend)
    return backend in OWN_BACKENDS and function is _FUNCTIONS.get(backend)


def is_known(backend: str | None) -> bool:
    """Whether its function is of transformers, so that it reads no padding if it has a mask."""
    if is_own(backend):
        return True
    function = ALL_ATTENTION_FUNCTIONS.get(backend)
    home = getattr(getattr(function, "func", function), "__module__", "")
    return home.startswith("transformers.")


def check_bias(config: BertConfig, backend: str) -> None:
    """Raises ValueError if a backend cannot add the position bias that a config asks for."""
    if config.position_embedding_type.startswith("relative") and backend not in OWN_BACKENDS:
        raise ValueError(
            f"attn_implementation={backend!r} cannot add the position bias of "
            f"position_embedding_type={config.position_embedding_type!r}; use one of "
            f"{', '.join(OWN_BACKENDS)}"
        )


def layer_masks(
    config: BertConfig,
    layout: Layout,
    embeddings: Tensor,
    cache: Cache | None,
    encoder_hidden_states: Tensor | None,
    encoder_attention_mask: Tensor | None,
    output_attentions: bool,
) -> dict[str, Any]:
    """The masks that the layers take, by argument: for the backend, and for probabilities that are
    computed for a backend that returns none.

    Args:
        layout: Whose mask is `attention_mask` as a user gives it, see `backend_mask`.
        embeddings: (B, Q, D), or (T, D) where the layout is packed, for its dtype and device.
        cache: Cache of a decoder.
        encoder_hidden_states: (B, K, D) in cross-attention.
        encoder_attention_mask: (B, K), its padding.
        output_attentions: Whether probabilities are asked for.

    Raises:
        ValueError: A mask that the backend cannot take.
    """
    backend, causal = config._attn_implementation or "eager", config.is_decoder
    if layout.route.is_packed:
        embeddings = embeddings.new_empty((*layout.grid, 0))
    device, queries, mask = embeddings.device, embeddings.shape[1], layout.mask
    mask = dense = None if mask is None else mask.to(device)
    if layout.number is not None:
        dense = sequence_mask(mask, layout.number.to(device), causal)
        mask = dense if backend in OWN_BACKENDS else mask
    masks = {"attention_mask": backend_mask(config, mask, embeddings, cache, causal, layout.number)}
    if encoder_hidden_states is not None and encoder_attention_mask is not None:
        encoder_attention_mask = encoder_attention_mask.to(device)
        masks["encoder_attention_mask"] = backend_mask(
            config, encoder_attention_mask, embeddings, source=encoder_hidden_states
        )
    if output_attentions and not isinstance(dense, Tensor | None):
        raise ValueError(
            f"output_attentions=True cannot be used with a {type(dense).__name__}. Pass a tensor "
            "as attention_mask, or leave one of them out."
        )
    if output_attentions and backend != "eager":
        cached = 0 if cache is None else int(cache.get_seq_length())
        masks["score_mask"] = score_mask(dense, queries, queries + cached, device, causal)
        if encoder_hidden_states is not None:
            keys = encoder_hidden_states.shape[1]
            of_encoder = score_mask(encoder_attention_mask, queries, keys, device, False)
            masks["encoder_score_mask"] = of_encoder
    return masks


def backend_mask(
    config: BertConfig,
    attention_mask: Any,
    embeddings: Tensor,
    cache: Cache | None = None,
    is_causal: bool = False,
    number: Tensor | None = None,
    source: Tensor | None = None,
) -> Any:
    """The mask in the form of the configured backend.

    Args:
        attention_mask: (B, K) with zeros at padding, or None. (B, Q, K) or
            (B, heads or 1, Q or 1, K) has zeros where a query must not attend and is used as it
            is. A 4-D tensor of floats is added to the scores.
        embeddings: (B, Q, D), for its shape, dtype and device.
        cache: Cache of a decoder.
        is_causal: Whether a query attends only to keys up to its own position.
        number: (1, S) of a packed row, for backends that take no 3-D mask.
        source: (B, K, D) in cross-attention.

    Returns:
        A bool or additive mask, a block mask (flex), a 2-D mask (flash attention), or None.

    Raises:
        ValueError: A 3-D or 4-D mask with a backend that cannot take one.
    """
    backend = config._attn_implementation or "eager"
    if attention_mask is not None and len(attention_mask.shape) != 2:
        return pair_mask(attention_mask, backend)
    if attention_mask is None and not is_causal and backend in OWN_BACKENDS:
        return None
    if is_mapped(attention_mask) and backend in OWN_BACKENDS:  # transformers would read it
        cached = 0 if cache is None else int(cache.get_seq_length())
        queries = embeddings.shape[1]
        keys = cached + (embeddings if source is None else source).shape[1]
        return score_mask(attention_mask, queries, keys, embeddings.device, is_causal)
    given: dict[str, Any] = {
        "config": config,
        "inputs_embeds": embeddings,
        "attention_mask": attention_mask,
        "and_mask_function": None if number is None else _together(number),
    }
    if is_causal:
        return create_causal_mask(**given, **{CACHE: cache})
    return create_bidirectional_mask(encoder_hidden_states=source, **given)


def pair_mask(attention_mask: Any, backend: str) -> Any:
    """A mask between queries and keys in the form of a backend.

    Raises:
        ValueError: The backend cannot take one.
    """
    if not isinstance(attention_mask, Tensor):
        if "flex" in backend:
            return attention_mask  # a BlockMask
        raise ValueError(
            f"attn_implementation={backend!r} takes no {type(attention_mask).__name__} as "
            "attention_mask; use 'flex_attention', or give a tensor"
        )
    if "flash" in backend or "flex" in backend:
        raise ValueError(
            f"attn_implementation={backend!r} takes no {attention_mask.ndim}-D attention mask; "
            "use 'sdpa' or 'eager', or give a (batch, sequence) mask"
        )
    return dense_mask(attention_mask)


def sequence_mask(attention_mask: Tensor | None, number: Tensor, is_causal: bool) -> Tensor:
    """(1, S, S) bool: which tokens of one row with several sequences attend to each other.

    Args:
        attention_mask: (1, S) with zeros at padding, or None.
        number: (1, S), the number of each token's sequence.
        is_causal: Whether a token attends only to those up to its own position.
    """
    mask = number[:, :, None] == number[:, None, :]
    if attention_mask is not None:
        mask = mask & (attention_mask != 0)[:, None]
    return mask.tril() if is_causal else mask


def score_mask(
    attention_mask: Tensor | None, queries: int, keys: int, device: torch.device, is_causal: bool
) -> Tensor | None:
    """The mask for probabilities that the backend does not return: bool, additive, or None.

    Args:
        attention_mask: As a user gives it, see `backend_mask`.
        queries: Q, the last of the K positions.
        keys: K, cached ones included.
    """
    if attention_mask is not None and attention_mask.ndim > 2:
        return dense_mask(attention_mask)
    mask = None
    if attention_mask is not None:
        mask = attention_mask[:, None, None, :keys].to(device) != 0
    if is_causal:
        causal = torch.ones((queries, keys), dtype=torch.bool, device=device).tril(keys - queries)
        mask = causal[None, None] if mask is None else mask & causal
    return mask


def dense_mask(attention_mask: Tensor) -> Tensor:
    """A 3-D or 4-D mask as (B, heads or 1, Q, K): bool, or additive if it came as 4-D floats."""
    if attention_mask.ndim == 3:
        return attention_mask[:, None] != 0
    return attention_mask if attention_mask.is_floating_point() else attention_mask != 0


def _together(number: Tensor) -> Callable[[Any, Any, Any, Any], Tensor]:
    """Whether query and key are of one sequence, as a function of indices, for transformers."""

    def together(batch: Any, head: Any, query: Any, key: Any) -> Tensor:
        return number[batch, query] == number[batch, key]

    return together
