"""Attention as soft addressing: a query, keys to compare it with, and values to read.

    weights = softmax over the keys of score(query, key)
    context = sum of weights times values

Notation: B batch, T queries, S keys, H heads, D size of a head, E size of the model.
Sources: additive score, Bahdanau et al. (2015, section 3.1 and appendix A.1.2); scaled dot product
and heads, Vaswani et al. (2017, sections 3.2.1 and 3.2.2).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .vocabulary import PAD


def soft_address(
    scores: Tensor, values: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Averages the values with the softmax of the scores as weights.

    Args:
        scores: (..., T, S), how well each key answers each query.
        values: (..., S, D).
        mask: (..., T, S) of bool, True where a query may attend; everywhere by default.

    Returns:
        The averages, (..., T, D), and the weights, (..., T, S), with sum 1 over S.
    """
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1)  # (..., T, S)
    return weights @ values, weights


def dot_product_scores(queries: Tensor, keys: Tensor, *, scaled: bool = True) -> Tensor:
    """q·k / √D: the scores of the Transformer.

    For D independent components of variance 1, q·k has variance D. The division restores 1, where
    softmax is not saturated.

    Args:
        queries: (..., T, D).
        keys: (..., S, D).
        scaled: False omits the division.

    Returns:
        (..., T, S).
    """
    scores = queries @ keys.transpose(-2, -1)  # (..., T, S)
    return scores / math.sqrt(queries.shape[-1]) if scaled else scores


class AdditiveScores(nn.Module):
    """v·tanh(W q + U k): the scores of Bahdanau's alignment model, a network of one hidden layer.

    Args:
        query_size: The size of q.
        key_size: The size of k.
        hidden_size: The size of the hidden layer.
    """

    def __init__(self, query_size: int, key_size: int, hidden_size: int) -> None:
        super().__init__()
        self.from_query = nn.Linear(query_size, hidden_size, bias=False)  # W
        self.from_key = nn.Linear(key_size, hidden_size, bias=False)  # U
        self.to_score = nn.Linear(hidden_size, 1, bias=False)  # v

    def project(self, keys: Tensor) -> Tensor:
        """U k, computed once per sentence because it is the same for all queries.

        Args:
            keys: (B, S, key_size).

        Returns:
            (B, S, hidden_size).
        """
        return self.from_key(keys)

    def forward(self, queries: Tensor, projected_keys: Tensor) -> Tensor:
        """Scores of all pairs.

        Args:
            queries: (B, T, query_size).
            projected_keys: (B, S, hidden_size) of `project`.

        Returns:
            (B, T, S).
        """
        pairs = self.from_query(queries).unsqueeze(2) + projected_keys.unsqueeze(1)  # (B, T, S, A)
        return self.to_score(pairs.tanh()).squeeze(-1)  # (B, T, S)


class MultiHeadAttention(nn.Module):
    """H parallel attentions, each in its own subspace of D = E / H components.

    Args:
        size: E.
        heads: H.
        reach: Above 0, each head adds a learned number to its scores for each distance from a query
            to a key, as in T5 (Raffel et al., 2020, section 2.1). Distances beyond share the last
            number. The numbers start at random, so that the heads start different.
    """

    def __init__(self, size: int, heads: int, reach: int = 0) -> None:
        super().__init__()
        if size % heads:
            raise ValueError(f"size {size} is not a multiple of {heads} heads")
        self.heads = heads
        self.query = nn.Linear(size, size)
        self.key = nn.Linear(size, size)
        self.value = nn.Linear(size, size)
        self.output = nn.Linear(size, size)
        self.reach = reach
        #: A number for each head and distance, from -reach to reach; none where reach is 0.
        self.distances = nn.Parameter(torch.randn(heads, 2 * reach + 1)) if reach else None
        #: The weights of the last call, (B, H, T, S), for pictures.
        self.weights: Tensor | None = None

    def forward(self, queries: Tensor, keys: Tensor, mask: Tensor | None = None) -> Tensor:
        """Self-attention if queries and keys are the same states, else cross-attention.

        Args:
            queries: (B, T, E).
            keys: (B, S, E), the values too.
            mask: True where a query may attend, (T, S) or (B, 1, S) or (B, T, S).

        Returns:
            (B, T, E).
        """
        q = self._split(self.query(queries))  # (B, H, T, D)
        k = self._split(self.key(keys))  # (B, H, S, D)
        v = self._split(self.value(keys))  # (B, H, S, D)
        if mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(1)  # (B, 1, T, S): the same for all heads
        scores = dot_product_scores(q, k)  # (B, H, T, S)
        if self.distances is not None:
            places = torch.arange(keys.shape[1])
            apart = places - places[: queries.shape[1], None]  # (T, S), negative to the left
            scores = scores + self.distances[:, apart.clamp(-self.reach, self.reach) + self.reach]
        context, weights = soft_address(scores, v, mask)
        self.weights = weights.detach()
        joined = context.transpose(1, 2).flatten(2)  # (B, T, H·D)
        return self.output(joined)  # (B, T, E)

    def _split(self, states: Tensor) -> Tensor:
        """(B, S, E) → (B, H, S, D)."""
        return states.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def padding_mask(tokens: Tensor) -> Tensor:
    """Allows attention to every token except padding.

    Args:
        tokens: (B, S).

    Returns:
        (B, 1, S) of bool.
    """
    return (tokens != PAD).unsqueeze(1)


def causal_mask(length: int) -> Tensor:
    """Allows attention to the same place and to earlier places.

    Args:
        length: T.

    Returns:
        (T, T) of bool, True on and below the diagonal.
    """
    return torch.ones(length, length, dtype=torch.bool).tril()
