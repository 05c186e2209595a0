"""Multi-head attention: one class for self- and cross-attention, padded and packed.

Notation: B batch, Q queries, K keys, H heads, d head size, D = H·d, T computed tokens
(see `padding.py`).
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .attention_functions import (
    BIAS_BACKENDS,
    PACKED_BACKENDS,
    attend_joined,
    attend_products,
    attend_varlen,
    attention_probabilities,
    eager_attention_forward,
    longest_product,
    takes_varlen,
)
from .configuration_bert import BertConfig
from .dropout import Dropout
from .linear import linear
from .padding import Packing


class BertSelfAttention(nn.Module):
    """Projects to queries, keys and values and attends, over itself or over an encoder's output.

    Args:
        config: Sizes, dropout, position type, pruned heads.
        layer_idx: Number of the layer; names its slot in the cache.
        is_causal: Whether a query sees only keys up to its own position.
        is_cross_attention: Whether keys and values come from `key_value_states`.
    """

    def __init__(
        self,
        config: BertConfig,
        layer_idx: int,
        is_causal: bool = False,
        is_cross_attention: bool = False,
    ) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal
        self.is_cross_attention = is_cross_attention
        self.attention_head_size = config.hidden_size // config.num_attention_heads
        self.scaling = self.attention_head_size**-0.5
        pruned = [] if is_cross_attention else config.pruned_heads.get(layer_idx, [])
        #: Original numbers of the heads that are left.
        self.heads = [h for h in range(config.num_attention_heads) if h not in pruned]

        width = len(self.heads) * self.attention_head_size
        self.query = nn.Linear(config.hidden_size, width)
        self.key = nn.Linear(config.hidden_size, width)
        self.value = nn.Linear(config.hidden_size, width)
        self.dropout = Dropout(config.attention_probs_dropout_prob)

        self.distance_embedding: nn.Embedding | None = None
        if config.position_embedding_type.startswith("relative") and not is_cross_attention:
            self.distance_embedding = nn.Embedding(
                2 * config.max_position_embeddings - 1, self.attention_head_size
            )

    @property
    def num_attention_heads(self) -> int:
        """Heads that are left after pruning."""
        return len(self.heads)

    @property
    def _dropout(self) -> float:
        return self.dropout.p if self.training else 0.0

    @property
    def all_head_size(self) -> int:
        """Width of the queries, keys and values."""
        return len(self.heads) * self.attention_head_size

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        key_value_states: Tensor | None = None,
        past_key_values: Cache | None = None,
        packing: Packing | None = None,
        head_mask: Tensor | None = None,
        output_attentions: bool = False,
        score_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends.

        Args:
            hidden_states: (B, Q, D), or (T, D) with a packing.
            attention_mask: As the backend takes it; None when everything is attended. Not read by
                the packed backends.
            key_value_states: (B, K, D), the encoder's output, in cross-attention.
            past_key_values: Cache to read and extend.
            packing: Layout of packed hidden states.
            head_mask: (number of original heads,): factor of each head's output (Michel et al.
                2019, equation 2).
            output_attentions: Whether to return the probabilities. The backend runs as ever; one
                that gives none has them computed beside it, without dropout.
            score_mask: Broadcasts to (B, H, Q, K), bool or additive: `attention_mask` for those
                probabilities.

        Returns:
            Context in the shape of `hidden_states` but with the width of the heads that are left,
            and the probabilities (B, H, Q, K) or None.
        """
        backend = self.config._attn_implementation or "eager"
        split = (-1, self.attention_head_size)
        query = linear(self.query, hidden_states).unflatten(-1, split)  # (B, Q, H, d) or (T, H, d)
        probabilities: Tensor | None = None

        if packing is not None and self._packs(query, packing, backend, output_attentions):
            key = linear(self.key, hidden_states).unflatten(-1, split)
            value = linear(self.value, hidden_states).unflatten(-1, split)
            context = self.attend_packed(query, key, value, packing)  # (T, H, d)
        else:
            key, value = self._keys_and_values(
                hidden_states, key_value_states, past_key_values, packing
            )
            query = self._to_heads(query, packing)  # (B, H, Q, d)
            attention_mask, score_mask = self._of_heads(attention_mask), self._of_heads(score_mask)
            if self.distance_embedding is not None:
                bias = self._position_bias(query, key)
                attention_mask = self._add_bias(attention_mask, bias, backend)
                if output_attentions:
                    score_mask = self._add_bias(score_mask, bias, "eager")
            query_mask = None
            if packing is not None and output_attentions:
                query_mask = _query_mask(packing)
                if backend == "eager":
                    kwargs = {**kwargs, "query_mask": query_mask}
            context, probabilities = self._interface(backend)(
                self,
                query,
                key,
                value,
                attention_mask,
                dropout=self._dropout,
                scaling=self.scaling,
                **kwargs,
            )  # (B, Q, H, d)
            if not output_attentions:
                probabilities = None
            elif probabilities is None:
                if score_mask is not None:  # a static cache has room for keys to come
                    key = key[:, :, : score_mask.shape[-1]]
                # In float32 at least: half precision would add an error of its own.
                precise = torch.promote_types(query.dtype, torch.float32)
                probabilities = attention_probabilities(
                    query.to(precise), key.to(precise), score_mask, self.scaling
                ).to(query.dtype)
                if query_mask is not None:
                    probabilities = probabilities.masked_fill(~query_mask, 0)
            if packing is not None:
                context = packing.from_grid(context)  # (T, H, d)

        if head_mask is not None:
            # A factor on a head's probabilities is a factor on its output, so it needs no backend
            # that knows of it.
            head_mask = head_mask[self.heads].to(context.dtype)
            context = context * head_mask[:, None]
            if probabilities is not None:
                probabilities = probabilities * head_mask[:, None, None]
        return context.flatten(-2), probabilities

    def prune_heads(self, heads: set[int]) -> list[int]:
        """Removes heads by their original numbers.

        Returns:
            The columns of the context (d a head) that are left.
        """
        size = self.attention_head_size
        kept = [slot for slot, head in enumerate(self.heads) if head not in heads]
        columns = [slot * size + i for slot in kept for i in range(size)]
        for name in ("query", "key", "value"):
            setattr(self, name, prune_linear(getattr(self, name), columns, dim=0))
        self.heads = [self.heads[slot] for slot in kept]
        return columns

    def _interface(self, backend: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
        return ALL_ATTENTION_FUNCTIONS.get_interface(backend, eager_attention_forward)

    def _packs(
        self, query: Tensor, packing: Packing, backend: str, output_attentions: bool
    ) -> bool:
        """Whether attention itself runs on packed tokens, not only what lies around it."""
        if backend not in PACKED_BACKENDS or output_attentions or self.distance_embedding:
            return False
        if backend == "eager" or query.device.type == "cpu":
            return True
        # An accelerator is kept waiting by a launch for every length: one launch for all sequences,
        # or else a padded one. The variable-length kernel does not define a softmax over nothing.
        return takes_varlen(query, self._dropout) and all(group.keys for group in packing.groups)

    def attend_packed(self, query: Tensor, key: Tensor, value: Tensor, packing: Packing) -> Tensor:
        """Attention within each sequence of packed tokens: no mask, no padding.

        Args:
            query: (T, H, d); likewise key and value.
            packing: Where each sequence lies.

        Returns:
            (T, H, d).
        """
        backend = self.config._attn_implementation or "eager"
        if backend == "sdpa" and takes_varlen(query, self._dropout):
            return attend_varlen(query, key, value, packing, self.scaling)
        dropout = self._dropout
        by_products = backend == "sdpa" and not self.is_causal
        longest = longest_product(query, dropout) if by_products else 0
        sizes = [group.rows * group.queries for group in packing.groups]
        contexts: list[Tensor] = []
        for group, q, k, v in zip(
            packing.groups, query.split(sizes), key.split(sizes), value.split(sizes), strict=True
        ):
            keys, mask = group.keys, None
            if keys == 0 and backend == "eager":
                # As in upstream's plain products: the lowest number on every score of a row is a
                # mean over all of it. The fused kernels give zero.
                keys, mask = group.queries, q.new_full((1, 1, 1, 1), torch.finfo(q.dtype).min)
            if keys == 0:  # sequences that attend to nothing
                contexts.append(torch.zeros_like(q))
            elif group.queries <= longest:
                contexts.extend(attend_products(q, k, v, group, self.scaling, dropout))
            else:
                q, k, v = (
                    x.unflatten(0, (group.rows, group.queries)).transpose(1, 2) for x in (q, k, v)
                )  # (rows, H, queries, d), a view
                k, v = k[:, :, :keys], v[:, :, :keys]
                context, _ = self._interface(backend)(
                    self, q, k, v, mask, dropout=dropout, scaling=self.scaling
                )  # (rows, queries, H, d)
                contexts.append(context.flatten(0, 1))
        if len(contexts) == 1:
            return contexts[0]
        return torch.cat(contexts) if contexts else query

    def attend_joined(self, projected: Tensor, packing: Packing) -> Tensor:
        """`attend_packed`, of queries, keys and values side by side.

        Args:
            projected: (T, 3·H·d); without gradients.
            packing: Where each sequence lies.

        Returns:
            (T, H·d).
        """
        size, heads = self.attention_head_size, len(self.heads)
        if self.config._attn_implementation == "sdpa" and not self.is_causal:
            longest = longest_product(projected, self._dropout)
            if all(group.keys and group.queries <= longest for group in packing.groups):
                return attend_joined(projected, packing.groups, heads, self.scaling)
        query, key, value = projected.view(len(projected), 3, heads, size).unbind(1)
        return self.attend_packed(query, key, value, packing).flatten(-2)

    def _of_heads(self, mask: Any) -> Any:
        """A mask of each original head as one of the heads that are left; any other as it is."""
        heads = self.config.num_attention_heads
        is_pruned = isinstance(mask, Tensor) and mask.ndim == 4 and len(self.heads) < heads
        return mask[:, self.heads] if is_pruned and mask.shape[1] == heads else mask

    def _to_heads(self, states: Tensor, packing: Packing | None) -> Tensor:
        """(B, S, H, d), or (T, H, d) with a packing, to (B, H, S, d)."""
        return (packing.to_grid(states) if packing is not None else states).transpose(1, 2)

    def _keys_and_values(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None,
        past_key_values: Cache | None,
        packing: Packing | None,
    ) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, K, d), through the cache if there is one."""
        cache: Any = past_key_values
        if isinstance(past_key_values, EncoderDecoderCache):
            cache = (
                past_key_values.cross_attention_cache
                if self.is_cross_attention
                else past_key_values.self_attention_cache
            )
            if self.is_cross_attention and past_key_values.is_updated.get(self.layer_idx):
                # The encoder's keys do not change from token to token.
                layer = cache.layers[self.layer_idx]
                return layer.keys, layer.values
        elif self.is_cross_attention:
            cache = None  # a plain cache holds self-attention only

        source = hidden_states
        if self.is_cross_attention:
            assert key_value_states is not None
            source = key_value_states
        split = (-1, self.attention_head_size)
        key = self._to_heads(linear(self.key, source).unflatten(-1, split), packing)
        value = self._to_heads(linear(self.value, source).unflatten(-1, split), packing)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
            if self.is_cross_attention and isinstance(past_key_values, EncoderDecoderCache):
                past_key_values.is_updated[self.layer_idx] = True
        return key, value

    def _position_bias(self, query: Tensor, key: Tensor) -> Tensor:
        """What relative positions add to the scaled scores, (B, H, Q, K).

        relative_key: q_i · a_(i-j) (Shaw et al. 2018, equation 5); relative_key_query adds
        k_j · a_(i-j) (Huang et al. 2020, method 4). The distance of a query to a key runs from
        -(max_position_embeddings - 1); queries stand at the end of the keys, as with a cache.
        """
        assert self.distance_embedding is not None
        queries, keys = query.shape[2], key.shape[2]
        key_position = torch.arange(keys, device=query.device)
        query_position = torch.arange(keys - queries, keys, device=query.device)
        distance = query_position[:, None] - key_position[None, :]
        offset = (self.distance_embedding.num_embeddings - 1) // 2
        # Tokens of different sequences in a packed row may be further apart; they are masked.
        distance = distance.clamp(-offset, offset)
        embedding = self.distance_embedding(distance + offset).to(query.dtype)  # (Q, K, d)
        bias = torch.einsum("bhqd,qkd->bhqk", query, embedding)
        if self.config.position_embedding_type == "relative_key_query":
            bias = bias + torch.einsum("bhkd,qkd->bhqk", key, embedding)
        return bias * self.scaling

    def _add_bias(self, attention_mask: Any, bias: Tensor, backend: str) -> Tensor:
        """Position bias and mask as one additive mask."""
        if backend not in BIAS_BACKENDS:
            raise ValueError(
                f"attn_implementation={backend!r} cannot add the position bias of "
                f"position_embedding_type={self.config.position_embedding_type!r}; use one of "
                f"{', '.join(BIAS_BACKENDS)}"
            )
        if attention_mask is None:
            if not self.is_causal or bias.shape[2] == 1:
                return bias
            # sdpa leaves causality to a flag, which a mask switches off.
            ones = torch.ones(bias.shape[2:], dtype=torch.bool, device=bias.device)
            attention_mask = ones.tril(bias.shape[3] - bias.shape[2])
        if attention_mask.dtype == torch.bool:
            return bias.masked_fill(~attention_mask, torch.finfo(bias.dtype).min)
        return bias + attention_mask


class BertSelfOutput(nn.Module):
    """Projects the context back, adds the layer's input and normalises."""

    def __init__(self, config: BertConfig, context_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(context_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        """(..., context) and the sub-layer's input (..., D) to (..., D)."""
        projected = linear(self.dense, hidden_states)
        return self.LayerNorm(self.dropout(projected) + input_tensor)


class BertAttention(nn.Module):
    """An attention sub-layer: attend, project, add, normalise."""

    def __init__(
        self,
        config: BertConfig,
        layer_idx: int,
        is_causal: bool = False,
        is_cross_attention: bool = False,
    ) -> None:
        super().__init__()
        self.self = BertSelfAttention(config, layer_idx, is_causal, is_cross_attention)
        self.output = BertSelfOutput(config, self.self.all_head_size)

    def forward(
        self, hidden_states: Tensor, kept: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """(..., D) to (..., D), or of the tokens in `kept` only, and the probabilities.

        Other arguments as in `BertSelfAttention.forward`.
        """
        context, probabilities = self.self(hidden_states, **kwargs)
        if kept is not None:
            context, hidden_states = context[kept], hidden_states[kept]
        return self.output(context, hidden_states), probabilities

    def prunable(self) -> Iterator[tuple[str, nn.Module]]:
        """The linear layers that `prune_heads` makes smaller ones of, with their names."""
        for name in ("query", "key", "value"):
            yield f"self.{name}", getattr(self.self, name)
        yield "output.dense", self.output.dense

    def prune_heads(self, heads: set[int]) -> None:
        """Removes heads by their original numbers, and the columns that read them."""
        self.output.dense = prune_linear(self.output.dense, self.self.prune_heads(heads), dim=1)


def prune_linear(layer: nn.Linear, kept: list[int], dim: int) -> nn.Linear:
    """A smaller copy of `layer`: the outputs (dim 0) or inputs (dim 1) in `kept`."""
    index = torch.tensor(kept, dtype=torch.long, device=layer.weight.device)
    weight = layer.weight.detach().index_select(dim, index)
    smaller = nn.Linear(
        weight.shape[1], weight.shape[0], device=weight.device, dtype=weight.dtype
    ).requires_grad_(layer.weight.requires_grad)
    with torch.no_grad():
        smaller.weight.copy_(weight)
        smaller.bias.copy_(layer.bias.index_select(0, index) if dim == 0 else layer.bias)
    return smaller.train(layer.training)


def _query_mask(packing: Packing) -> Tensor:
    """(B, 1, S, 1) bool: which positions are computed, so have a row of probabilities."""
    computed = torch.ones(packing.tokens, dtype=torch.bool, device=packing.device)
    return packing.to_grid(computed)[:, None, :, None]
