"""From the attention mask that a user gives to the one that a backend takes.

Notation: B batch, Q queries, K keys.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

from .configuration_bert import BertConfig
from .packed import Sequences


def backend_mask(
    config: BertConfig,
    attention_mask: Tensor | None,
    embeddings: Tensor,
    past_key_values: Cache | None = None,
    encoder_hidden_states: Tensor | None = None,
    is_causal: bool = False,
    sequences: Sequences | None = None,
) -> Any:
    """The mask in the form of the configured backend.

    Args:
        attention_mask: (B, K) with zeros at padding; (B, Q, K) or (B, heads or 1, Q or 1, K) with
            zeros where a query must not look, used as it is, or added to the scores if it is a 4-D
            tensor of floats; or None.
        embeddings: (B, Q, D), for its shape, dtype and device.
        past_key_values: Cache of a decoder.
        encoder_hidden_states: (B, K, D) in cross-attention.
        is_causal: Whether a query sees only keys up to its own position.
        sequences: Of one row that holds several, for backends that take no 3-D mask.

    Returns:
        A bool or additive mask, a block mask (flex), a 2-D mask (flash attention), or None.

    Raises:
        ValueError: A 3-D or 4-D mask with a backend that cannot take one.
    """
    backend = config._attn_implementation or "eager"
    if attention_mask is not None and attention_mask.ndim > 2:
        mask = dense_mask(attention_mask)
        if "flash" in backend or "flex" in backend:
            raise ValueError(
                f"attn_implementation={backend!r} takes no {attention_mask.ndim}-D attention mask; "
                "use 'sdpa' or 'eager', or give a (batch, sequence) mask"
            )
        return mask if backend != "eager" else additive_mask(mask, embeddings.dtype)
    if attention_mask is None and not is_causal and backend in ("eager", "sdpa"):
        return None
    together = None if sequences is None else _together(sequences.number)
    if is_causal:
        return create_causal_mask(
            config=config,
            inputs_embeds=embeddings,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            and_mask_function=together,
        )
    return create_bidirectional_mask(
        config=config,
        inputs_embeds=embeddings,
        attention_mask=attention_mask,
        encoder_hidden_states=encoder_hidden_states,
        and_mask_function=together,
    )


def sequence_mask(attention_mask: Tensor | None, sequences: Sequences, is_causal: bool) -> Tensor:
    """(1, S, S) bool: which tokens of one row look at each other, where it holds several sequences.

    Args:
        attention_mask: (1, S) with zeros at padding; or this mask already; or None.
        is_causal: Whether a token sees only those up to its own position.
    """
    if attention_mask is not None and attention_mask.ndim == 3:
        return attention_mask
    mask = sequences.number[:, :, None] == sequences.number[:, None, :]
    if attention_mask is not None:
        mask = mask & (attention_mask != 0)[:, None]
    return mask.tril() if is_causal else mask


def key_mask(attention_mask: Tensor | None, batch_size: int) -> Tensor | None:
    """(B, K) in place of a mask (B or 1, 1, 1, K) of zeros and ones; other masks as they are."""
    if attention_mask is None or attention_mask.ndim != 4 or attention_mask.is_floating_point():
        return attention_mask
    if attention_mask.shape[1] != 1 or attention_mask.shape[2] != 1:
        return attention_mask
    return attention_mask[:, 0, 0].expand(batch_size, -1)


def score_mask(
    attention_mask: Tensor | None, queries: int, keys: int, device: torch.device, is_causal: bool
) -> Tensor | None:
    """The mask for probabilities computed beside a backend: bool or additive, or None.

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
    """By index, whether query and key are of one sequence: the form of transformers' masks."""

    def together(batch: Any, head: Any, query: Any, key: Any) -> Tensor:
        return number[batch, query] == number[batch, key]

    return together


def additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Zero where a bool mask is True, the dtype's minimum elsewhere."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(
        ~mask, torch.finfo(dtype).min
    )
