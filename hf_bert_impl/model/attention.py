"""Multi-head attention: classes for self- and cross-attention, padded and packed; the functions
that compute it, by backend; dropout; and the masks in the form that each backend takes.

Notation: B batch, S sequence, Q queries, K keys, H heads, d head size, D = H·d, T computed tokens
(see `packing.py`).
"""

import functools
import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import fields
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_bert import BertConfig, is_batch_invariant
from .cpu_kernels import linear
from .packing import Packing, RowGroup, Sequences, is_mapped, is_traced

#: The installed transformers' name of a decoder's cache, in arguments and in outputs: `cache` from
#: 5.24 on, `past_key_values` before.
CACHE = {field.name for field in fields(BaseModelOutputWithPoolingAndCrossAttentions)}.intersection(
    ("cache", "past_key_values")
).pop()
Forward = TypeVar("Forward", bound=Callable[..., Any])

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
#: Shorter rows of equal length are gathered into one product, since the start of a product costs
#: the most there. Each longer row has a product of its own, which reads the row in place.
SHORTEST_ALONE = 32
#: Fewer keys than this do not fill a vector of the CPU. A softmax over keys that are the rows of
#: the scores then takes a third of the time of one over keys that are the columns.
SHORTEST_LAST_SOFTMAX = 16
#: How many values 16 bits of `drop` have, and the least of them as a signed integer.
VALUES, LEAST = 1 << 16, -(1 << 15)
ALL_64_BITS = -(1 << 63)


def takes_cache(forward: Forward) -> Forward:
    """Lets a `forward` take its `cache` as `past_key_values` too; its signature says `CACHE`.

    Likewise `cache_length`, as `past_key_values_length`.
    """
    old = {"cache": "past_key_values", "cache_length": "past_key_values_length"}

    @functools.wraps(forward)
    def renamed(*args: Any, **kwargs: Any) -> Any:
        for name, before in old.items():
            given = kwargs.pop(before, None)
            if given is None:
                continue
            if kwargs.get(name) is not None:
                raise ValueError(
                    f"{name} and {before} are two names of one argument; give one of them"
                )
            if CACHE == "cache" and not torch.compiler.is_compiling():
                words = f"`{before}` is deprecated by transformers 5.24; use `{name}`"
                warnings.warn(words, FutureWarning, stacklevel=2)
            kwargs[name] = given
        return forward(*args, **kwargs)

    signature = inspect.signature(forward)
    renamed.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[
            value.replace(name=name.replace("cache", CACHE)) if name in old else value
            for name, value in signature.parameters.items()
        ]
    )
    return renamed  # type: ignore[return-value]


class BertSelfAttention(nn.Module):
    """Projects to queries, keys and values and attends.

    Args:
        config: Sizes, dropout, position type, pruned heads.
        is_causal: Whether a query sees only keys up to its own position.
        layer_idx: Number of the layer; names its slot in the cache.
    """

    #: Whether keys and values come from an encoder's output.
    is_cross_attention = False

    def __init__(
        self, config: BertConfig, is_causal: bool = False, layer_idx: int | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.layer_idx: Any = layer_idx
        self.is_causal = is_causal
        self.is_decoder = config.is_decoder
        self.attention_head_size = config.hidden_size // config.num_attention_heads
        self.scaling = self.attention_head_size**-0.5
        number: Any = None if self.is_cross_attention else layer_idx
        pruned = config.pruned_heads.get(number, [])
        #: Original numbers of the heads that are left.
        self.heads = [h for h in range(config.num_attention_heads) if h not in pruned]

        self.query = nn.Linear(config.hidden_size, self.all_head_size)
        self.key = nn.Linear(config.hidden_size, self.all_head_size)
        self.value = nn.Linear(config.hidden_size, self.all_head_size)
        self.dropout = Dropout(config.attention_probs_dropout_prob)

        self.distance_embedding: nn.Embedding | None = None
        if config.position_embedding_type.startswith("relative") and not self.is_cross_attention:
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

    @takes_cache
    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        cache: Cache | None = None,
        *,
        encoder_hidden_states: Tensor | None = None,
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
            cache: Cache to read and extend.
            encoder_hidden_states: (B, K, D), the encoder's output, read in cross-attention.
            packing: Layout of packed hidden states.
            head_mask: (number of original heads,): factor of each head's output (Michel et al.
                2019, equation 2).
            output_attentions: Whether to return the probabilities, even if the backend gives none.
                They are then computed beside it, without dropout.
            score_mask: Broadcasts to (B, H, Q, K), bool or additive: `attention_mask` for those
                probabilities.

        Returns:
            Context in the shape of `hidden_states` but with the width of the heads that are left,
            and the probabilities (B, H, Q, K) or None.
        """
        backend = self.config._attn_implementation or "eager"
        split = (-1, self.attention_head_size)
        invariant = is_batch_invariant(self.config)
        query = linear(self.query, hidden_states, None, invariant)
        query = query.unflatten(-1, split)  # (B, Q, H, d) or (T, H, d)
        probabilities: Tensor | None = None

        if packing is not None and self._packs(query, packing, backend, output_attentions):
            key = linear(self.key, hidden_states, None, invariant).unflatten(-1, split)
            value = linear(self.value, hidden_states, None, invariant).unflatten(-1, split)
            context = self.attend_packed(query, key, value, packing)  # (T, H, d)
        else:
            key, value = self._keys_and_values(hidden_states, encoder_hidden_states, cache, packing)
            query = self._to_heads(query, packing)  # (B, H, Q, d)
            attention_mask, score_mask = self._of_heads(attention_mask), self._of_heads(score_mask)
            if self.distance_embedding is not None:
                bias = self._position_bias(query, key)
                attention_mask = self._add_bias(attention_mask, bias, backend)
                if output_attentions:
                    score_mask = self._add_bias(score_mask, bias, "eager")
            query_mask = None
            if packing is not None and output_attentions:
                query_mask = packing.computed_grid()[:, None, :, None]  # (B, 1, S, 1)
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
            if output_attentions and probabilities is None:
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
            # A factor on a head's probabilities is a factor on its output, so that no backend has
            # to know of it.
            head_mask = head_mask[self.heads].to(context.dtype)
            context = context * head_mask[:, None]
            if probabilities is not None:
                probabilities = probabilities * head_mask[:, None, None]
        return context.flatten(-2), probabilities

    takes_packed: Any = (forward,)

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
        # A launch for every length would keep an accelerator waiting. There one kernel takes all
        # sequences, or else they are padded. That kernel defines no softmax over nothing.
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
        dropout, longest = self._dropout, self._longest_product(query, packing)
        empty_as_mean = backend == "eager"
        if packing.batch_invariant:
            backend = "sdpa"  # "eager" is not steady
        # A product of several sequences may be summed in another order. Alone, a sequence is always
        # computed by the same calls.
        is_alone = packing.batch_invariant
        groups = packing.single_groups if is_alone else packing.groups
        sizes = [group.rows * group.queries for group in groups]
        contexts: list[Tensor] = []
        for group, q, k, v in zip(
            groups, query.split(sizes), key.split(sizes), value.split(sizes), strict=True
        ):
            if is_alone:  # copies: a view may begin anywhere in a vector of the CPU
                q, k, v = q.clone(), k.clone(), v.clone()
            keys, mask, parts = group.keys, None, [q]
            if keys == 0 and empty_as_mean:
                # As in upstream's plain products: the lowest number is added to every score of a
                # row, which gives the mean over the whole row. The fused kernels give zero.
                keys, mask = group.queries, q.new_full((1, 1, 1, 1), torch.finfo(q.dtype).min)
            elif is_alone and 0 < keys < group.queries:
                parts, k, v = [q[:keys], q[keys:]], k[:keys], v[:keys]
            for part in parts:
                own = group._replace(queries=len(part) // group.rows)
                if keys == 0:  # sequences that attend to nothing
                    contexts.append(torch.zeros_like(part))
                elif mask is None and own.queries <= longest:
                    contexts.extend(attend_products(part, k, v, own, self.scaling, dropout))
                else:
                    rows = [x.unflatten(0, (group.rows, -1)).transpose(1, 2) for x in (part, k, v)]
                    context, _ = self._interface(backend)(
                        self,
                        rows[0],  # (rows, H, queries, d), a view
                        rows[1][:, :, :keys],
                        rows[2][:, :, :keys],
                        mask,
                        dropout=dropout,
                        scaling=self.scaling,
                    )  # (rows, queries, H, d)
                    contexts.append(context.flatten(0, 1))
        if len(contexts) == 1:
            return contexts[0]
        return torch.cat(contexts) if contexts else query

    def takes_products(self, states: Tensor, packing: Packing) -> bool:
        """Whether plain products attend all sequences; `attend_joined` needs to know.

        Args:
            states: (T, D), of the dtype and on the device of the queries.
            packing: Where each sequence lies.
        """
        if packing.batch_invariant:
            return False
        longest = self._longest_product(states, packing)
        return bool(packing.groups) and all(
            group.keys and group.queries <= longest for group in packing.groups
        )

    def _longest_product(self, states: Tensor, packing: Packing) -> float:
        """Up to how many queries a sequence is attended by plain products; 0 if none is."""
        by_products = self.config._attn_implementation == "sdpa" or packing.batch_invariant
        if self.is_causal or not by_products:
            return 0
        longest = longest_product(states, self._dropout)
        if packing.batch_invariant and states.dtype is torch.float32:
            return max(longest, LONGEST_PRODUCT)  # the fused kernel is not steady below
        return longest

    def attend_joined(self, projected: Tensor, packing: Packing, by_products: bool) -> Tensor:
        """`attend_packed` for queries, keys and values that lie side by side.

        Args:
            projected: (T, 3·H·d); without gradients.
            packing: Where each sequence lies.
            by_products: What `takes_products` says.

        Returns:
            (T, H·d).
        """
        size, heads = self.attention_head_size, len(self.heads)
        if by_products:
            return attend_joined(projected, packing.groups, heads, self.scaling)
        query, key, value = projected.view(len(projected), 3, heads, size).unbind(1)
        return self.attend_packed(query, key, value, packing).flatten(-2)

    def _of_heads(self, mask: Any) -> Any:
        """Takes the heads that are left from a mask of each original head; leaves other masks."""
        heads = self.config.num_attention_heads
        is_pruned = isinstance(mask, Tensor) and mask.ndim == 4 and len(self.heads) < heads
        return mask[:, self.heads] if is_pruned and mask.shape[1] == heads else mask

    def _to_heads(self, states: Tensor, packing: Packing | None) -> Tensor:
        """(B, S, H, d), or (T, H, d) with a packing, to (B, H, S, d)."""
        return (packing.to_grid(states) if packing is not None else states).transpose(1, 2)

    def _keys_and_values(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None,
        cache: Cache | None,
        packing: Packing | None,
    ) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, K, d), through the cache if there is one."""
        own: Any = cache
        if isinstance(cache, EncoderDecoderCache):
            own = (
                cache.cross_attention_cache
                if self.is_cross_attention
                else cache.self_attention_cache
            )
            if self.is_cross_attention and cache.is_updated.get(self.layer_idx):
                # The encoder's keys do not change from token to token.
                layer = own.layers[self.layer_idx]
                return layer.keys, layer.values
        elif self.is_cross_attention:
            own = None  # a plain cache holds self-attention only

        source = hidden_states
        if self.is_cross_attention:
            assert encoder_hidden_states is not None
            source = encoder_hidden_states
        split = (-1, self.attention_head_size)
        key = self._to_heads(linear(self.key, source).unflatten(-1, split), packing)
        value = self._to_heads(linear(self.value, source).unflatten(-1, split), packing)
        if own is not None:
            key, value = own.update(key, value, self.layer_idx)
            if self.is_cross_attention and isinstance(cache, EncoderDecoderCache):
                cache.is_updated[self.layer_idx] = True
        return key, value

    def _position_bias(self, query: Tensor, key: Tensor) -> Tensor:
        """What relative positions add to the scaled scores, (B, H, Q, K).

        relative_key: q_i · a_(i-j) (Shaw et al. 2018, equation 5); relative_key_query adds
        k_j · a_(i-j) (Huang et al. 2020, method 4). The first row of the table is distance
        -(max_position_embeddings - 1). The queries are the last of the keys, as with a cache.
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
        check_bias(self.config, backend)
        if attention_mask is None:
            if not self.is_causal or bias.shape[2] == 1:
                return bias
            # sdpa leaves causality to a flag, which a mask switches off.
            ones = torch.ones(bias.shape[2:], dtype=torch.bool, device=bias.device)
            attention_mask = ones.tril(bias.shape[3] - bias.shape[2])
        if attention_mask.dtype == torch.bool:
            return bias.masked_fill(~attention_mask, torch.finfo(bias.dtype).min)
        return bias + attention_mask


class BertCrossAttention(BertSelfAttention):
    """Queries from a decoder; keys and values from an encoder's output."""

    is_cross_attention = True

    @takes_cache
    def forward(  # type: ignore[override]  # positions as in transformers
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Any = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As `BertSelfAttention.forward`."""
        return super().forward(
            hidden_states,
            attention_mask,
            cache,
            encoder_hidden_states=encoder_hidden_states,
            **kwargs,
        )

    takes_packed = (forward,)


def check_bias(config: BertConfig, backend: str) -> None:
    """Raises ValueError if a backend cannot add the position bias that a config asks for."""
    if config.position_embedding_type.startswith("relative") and backend not in BIAS_BACKENDS:
        raise ValueError(
            f"attn_implementation={backend!r} cannot add the position bias of "
            f"position_embedding_type={config.position_embedding_type!r}; use one of "
            f"{', '.join(BIAS_BACKENDS)}"
        )


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
    """Plain products beat the fused kernel up to so many queries a row, in float32 on the CPU.

    It is 0 with gradients, which need the probabilities kept. With dropout there is no limit: the
    CPU's fused kernel has no dropout, so torch keeps the probabilities as well. In half precision
    it is 0: the fused kernel is more exact, since it holds its scores in float32.
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
    """Attention without mask by plain products, for queries, keys and values side by side.

    It computes what `attend_products` does, but makes each view in one step, which is quicker.

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
    strides = (size, row, 1)
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
            query = projected.as_strided((heads, queries, size), strides, at)
            key = projected.as_strided((heads, keys, size), strides, at + width)
            value = projected.as_strided((heads, keys, size), strides, at + 2 * width)
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


class Dropout(nn.Dropout):
    """`nn.Dropout`, with 16 random bits an element for packed states (T, D) on a CPU.

    torch draws a number for every element, which shows in a training step on long sequences. One of
    64 bits serves four. It comes from torch's generator: seeds, checkpoints and recomputation work
    as ever. A padded batch draws as transformers' model does: the same seed, the same loss.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Any shape, the same shape."""
        if not self.training or input.dim() != 2:
            return super().forward(input)
        return drop(input, self.p)

    takes_packed = (forward,)


def drop(states: Tensor, probability: float) -> Tensor:
    """Zeroes elements and scales the others, so that the mean stays (Srivastava et al. 2014).

    Args:
        states: Any shape.
        probability: Of a zero, rounded to 1/65536. The other elements are scaled by 1/(1-p), with
            the rounded p.

    Returns:
        The shape of `states`.
    """
    dropped = round(probability * VALUES)
    is_drawn_here = states.device.type == "cpu" and not is_traced(states.device, states)
    if not is_drawn_here or not 0 < dropped < VALUES:
        return nn.functional.dropout(states, probability)
    count = states.numel()
    bits = torch.empty((count + 3) // 4, dtype=torch.int64, device=states.device)
    bits.random_(ALL_64_BITS, None)
    kept = bits.view(torch.int16)[:count].view(states.shape) >= LEAST + dropped
    return states * kept.to(states.dtype).mul_(VALUES / (VALUES - dropped))


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


def layer_masks(
    config: BertConfig,
    attention_mask: Tensor | None,
    embeddings: Tensor,
    cache: Cache | None,
    encoder_hidden_states: Tensor | None,
    encoder_attention_mask: Tensor | None,
    sequences: Sequences | None,
    output_attentions: bool,
) -> dict[str, Any]:
    """The masks that the layers take, by argument: for the backend, and for probabilities that are
    computed beside a backend that gives none.

    Args:
        embeddings: (B, Q, D), for its shape, dtype and device.
        output_attentions: Whether probabilities are asked for; the others as in `backend_mask`.
    """
    backend, causal = config._attn_implementation or "eager", config.is_decoder
    device, queries = embeddings.device, embeddings.shape[1]
    if attention_mask is not None:
        attention_mask = attention_mask.to(device)
    dense = attention_mask
    if sequences is not None and (backend in BIAS_BACKENDS or output_attentions):
        dense = sequence_mask(attention_mask, sequences, causal)
        if backend in BIAS_BACKENDS:
            attention_mask = dense
    masks: dict[str, Any] = {
        "attention_mask": backend_mask(
            config, attention_mask, embeddings, cache, None, causal, sequences
        )
    }
    if encoder_hidden_states is not None and encoder_attention_mask is not None:
        encoder_attention_mask = encoder_attention_mask.to(device)
        masks["encoder_attention_mask"] = backend_mask(
            config,
            encoder_attention_mask,
            embeddings,
            encoder_hidden_states=encoder_hidden_states,
        )
    if output_attentions and not isinstance(dense, Tensor | None):
        raise ValueError(
            f"output_attentions=True does not go with a {type(dense).__name__}; give a tensor as "
            "attention_mask, or leave one of them out"
        )
    if output_attentions and backend != "eager":
        cached = 0 if cache is None else int(cache.get_seq_length())
        masks["score_mask"] = score_mask(dense, queries, queries + cached, device, causal)
        if encoder_hidden_states is not None:
            masks["encoder_score_mask"] = score_mask(
                encoder_attention_mask, queries, encoder_hidden_states.shape[1], device, False
            )
    return masks


def backend_mask(
    config: BertConfig,
    attention_mask: Any,
    embeddings: Tensor,
    cache: Cache | None = None,
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
        cache: Cache of a decoder.
        encoder_hidden_states: (B, K, D) in cross-attention.
        is_causal: Whether a query sees only keys up to its own position.
        sequences: Those of a packed row, for backends that take no 3-D mask.

    Returns:
        A bool or additive mask, a block mask (flex), a 2-D mask (flash attention), or None.

    Raises:
        ValueError: A 3-D or 4-D mask with a backend that cannot take one.
    """
    backend = config._attn_implementation or "eager"
    if attention_mask is not None and not isinstance(attention_mask, Tensor):
        if "flex" in backend:
            return attention_mask  # a BlockMask
        raise ValueError(
            f"attn_implementation={backend!r} takes no {type(attention_mask).__name__} as "
            "attention_mask; use 'flex_attention', or give a tensor"
        )
    if attention_mask is not None and attention_mask.ndim > 2:
        if "flash" in backend or "flex" in backend:
            raise ValueError(
                f"attn_implementation={backend!r} takes no {attention_mask.ndim}-D attention mask; "
                "use 'sdpa' or 'eager', or give a (batch, sequence) mask"
            )
        return dense_mask(attention_mask)
    if attention_mask is None and not is_causal and backend in ("eager", "sdpa"):
        return None
    if is_mapped(attention_mask) and backend in BIAS_BACKENDS:  # transformers would look at it
        cached = 0 if cache is None else int(cache.get_seq_length())
        source = embeddings if encoder_hidden_states is None else encoder_hidden_states
        queries, keys = embeddings.shape[1], cached + source.shape[1]
        return score_mask(attention_mask, queries, keys, embeddings.device, is_causal)
    together = None if sequences is None else _together(sequences.number)
    given: dict[str, Any] = {
        "config": config,
        "inputs_embeds": embeddings,
        "attention_mask": attention_mask,
        "and_mask_function": together,
    }
    if is_causal:
        return create_causal_mask(**given, **{CACHE: cache})
    return create_bidirectional_mask(encoder_hidden_states=encoder_hidden_states, **given)


def sequence_mask(attention_mask: Tensor | None, sequences: Sequences, is_causal: bool) -> Tensor:
    """(1, S, S) bool: which tokens of one row look at each other, where it holds several sequences.

    Args:
        attention_mask: (1, S) with zeros at padding, or None.
        is_causal: Whether a token sees only those up to its own position.
    """
    mask = sequences.number[:, :, None] == sequences.number[:, None, :]
    if attention_mask is not None:
        mask = mask & (attention_mask != 0)[:, None]
    return mask.tril() if is_causal else mask


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
    """Whether query and key are of one sequence, as a function of indices, for transformers."""

    def together(batch: Any, head: Any, query: Any, key: Any) -> Tensor:
        return number[batch, query] == number[batch, key]

    return together
