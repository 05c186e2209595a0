"""Attention as functions: plain, and over sequences of different lengths in one kernel.

Notation: B batch, Q queries, K keys, H heads, d head size, T computed tokens (see `padding.py`).
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from .dropout import drop
from .padding import Packing, RowGroup

varlen_attn: Any = None
with suppress(ImportError):  # torch 2.10 and later
    from torch.nn.attention.varlen import varlen_attn

#: Backends that take one group of equally long rows at a time, without a mask. Any other backend
#: (flash attention, flex, one that a user registered) gets the padded batch and its own mask.
PACKED_BACKENDS = ("eager", "sdpa")

#: Backends that can add a position bias to the scores.
BIAS_BACKENDS = ("eager", "sdpa")

#: Longer sequences go through the fused kernel, whose blocks of scores stay in the cache.
LONGEST_PRODUCT = 256
#: Shorter rows of equal length are gathered into one product: there the launches cost the most.
#: From here on a product a row, which reads its row in place.
SHORTEST_ALONE = 32
#: Below, keys do not fill a vector of the CPU, and a softmax over them as rows takes a third of the
#: time of one over columns.
SHORTEST_LAST_SOFTMAX = 16


def attention_probabilities(
    query: Tensor, key: Tensor, attention_mask: Tensor | None, scaling: float
) -> Tensor:
    """softmax(Q·Kᵀ·scaling + mask): Vaswani et al. 2017, equation 1.

    Args:
        query: (B, H, Q, d).
        key: (B, H, K, d).
        attention_mask: Broadcasts to (B, H, Q, K): bool (True attends) or added to the scores.
        scaling: 1/√d in BERT.

    Returns:
        (B, H, Q, K) in the dtype of `query`.
    """
    scores = torch.matmul(query, key.transpose(-1, -2)) * scaling
    if attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            # A finite minimum, not -inf: a row that attends to nothing is uniform, never NaN.
            scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
        else:
            scores = scores + attention_mask
    return scores.softmax(dim=-1)


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    query_mask: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attention in plain matrix products, with the interface of transformers' backends.

    Args:
        query_mask: (B, 1, Q, 1) bool; probabilities of queries where it is False become zero.

    Returns:
        Context (B, Q, H, d) and the probabilities (B, H, Q, K) that gave it, after dropout.
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    probabilities = attention_probabilities(query, key, attention_mask, scaling)
    probabilities = nn.functional.dropout(probabilities, p=dropout, training=module.training)
    if query_mask is not None:
        probabilities = probabilities.masked_fill(~query_mask, 0)
    return torch.matmul(probabilities, value).transpose(1, 2).contiguous(), probabilities


def longest_product(query: Tensor, dropout: float) -> float:
    """Up to how many queries a row plain products beat the fused kernel: in float32 on the CPU.

    With gradients not, since the probabilities would have to be kept for them, unless there is
    dropout, which the CPU's fused kernel does not have: torch then keeps them as well. In half
    precision the fused kernel is the more exact: it holds its scores in float32.
    """
    if query.device.type != "cpu" or query.dtype != torch.float32:
        return 0
    if dropout > 0:
        return math.inf
    recorded = torch.is_grad_enabled() and query.requires_grad
    return 0 if recorded else LONGEST_PRODUCT


def attend_joined(
    projected: Tensor, groups: Iterable[RowGroup], heads: int, scaling: float
) -> Tensor:
    """Attention without mask by plain products, of queries, keys and values side by side.

    It computes what `attend_products` does, from views that are made at once, not step by step.

    Args:
        projected: (T, 3·H·d).
        groups: The rows, none without keys.
        heads: H.
        scaling: 1/√d in BERT.

    Returns:
        (T, H·d).
    """
    tokens, row = projected.shape
    width = row // 3
    size = width // heads
    place, start = projected.storage_offset(), 0
    contexts: list[Tensor] = []
    for group in groups:
        rows, queries, keys = group
        if rows > 1 and queries < SHORTEST_ALONE:
            block = projected[start : start + rows * queries]
            query, key, value = block.view(len(block), 3, heads, size).unbind(1)
            contexts.extend(attend_products(query, key, value, group, scaling))
            start += rows * queries
            continue
        for _ in range(rows):
            at = place + start * row
            query, key, value = (
                projected.as_strided((heads, count, size), (size, row, 1), at + part * width)
                for part, count in enumerate((queries, keys, keys))
            )
            contexts.append(_attend(query, key, value, scaling, 0.0).transpose(0, 1))
            start += queries
    if len(contexts) == 1:
        return contexts[0].reshape(tokens, width)
    return torch.cat(contexts).view(tokens, width)


def attend_products(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    group: RowGroup,
    scaling: float,
    dropout: float = 0.0,
) -> Iterator[Tensor]:
    """Attention without mask over rows of equal length.

    Args:
        query: (rows · queries, H, d), packed tokens; likewise key and value.
        group: The rows; `keys` is not 0.
        scaling: 1/√d in BERT.
        dropout: Probability of dropping a weight.

    Yields:
        (·, H, d), which together are (rows · queries, H, d).
    """
    rows, queries, keys = group
    if rows > 1 and queries < SHORTEST_ALONE:
        # (rows, H, ·, d), views but for the last step, to (rows · H, ·, d)
        q, k, v = (
            x.unflatten(0, (rows, queries)).transpose(1, 2)[:, :, :count].flatten(0, 1)
            for x, count in ((query, queries), (key, keys), (value, keys))
        )
        context = _attend(q, k, v, scaling, dropout)
        yield context.unflatten(0, (rows, -1)).transpose(1, 2).flatten(0, 1)
        return
    parts: Any = [(query, key, value)]
    if rows > 1:
        parts = zip(query.split(queries), key.split(queries), value.split(queries), strict=True)
    for q, k, v in parts:
        if keys < queries:
            k, v = k[:keys], v[:keys]
        context = _attend(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), scaling, dropout)
        yield context.transpose(0, 1)


def _attend(query: Tensor, key: Tensor, value: Tensor, scaling: float, dropout: float) -> Tensor:
    """(N, Q, d), (N, K, d) twice, to (N, Q, d)."""
    nothing = query.new_empty(())
    if key.shape[1] < SHORTEST_LAST_SOFTMAX and not dropout:
        scores = torch.baddbmm(nothing, key, query.transpose(1, 2), beta=0, alpha=scaling)
        return torch.bmm(scores.softmax(dim=1).transpose(1, 2), value)
    scores = torch.baddbmm(nothing, query, key.transpose(1, 2), beta=0, alpha=scaling)
    weights = scores.softmax(dim=-1)
    if dropout:
        weights = drop(weights, dropout)
    return torch.bmm(weights, value)


def takes_varlen(tensor: Tensor, dropout: float) -> bool:
    """Whether torch's variable-length flash attention computes this: half precision on CUDA."""
    return (
        varlen_attn is not None
        and tensor.device.type == "cuda"
        and tensor.dtype in (torch.float16, torch.bfloat16)
        and dropout == 0
    )


def attend_varlen(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, scaling: float
) -> Tensor:
    """All sequences in one kernel: (T, H, d) each."""
    queries, keys, longest_query, longest_key = packing.cumulative_lengths
    if packing.key_index is not None:
        key, value = key[packing.key_index], value[packing.key_index]
    return varlen_attn(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        queries,
        keys,
        longest_query,
        longest_key,
        scale=scaling,
        num_splits=1,  # else a document's last bits depend on its neighbours
    )
