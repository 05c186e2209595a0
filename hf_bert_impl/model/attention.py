"""Multi-head attention: the modules, what computes it on each route, and dropout.

Notation: B batch, S sequence, Q queries, K keys, H heads, d head size, D = H·d, T computed tokens
(see `layout.py`).
"""

import functools
import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_bert import BertConfig
from .inputs import is_traced
from .layout import Layout, RowGroup
from .linear import Packed, linear, product_of
from .masks import CACHE, check_bias
from .route import Route

Forward = TypeVar("Forward", bound=Callable[..., Any])

varlen_attn: Any = None
with suppress(ImportError):  # torch 2.10 and later
    from torch.nn.attention.varlen import varlen_attn
#: The largest head of flash attention's kernels.
MAX_FLASH_HEAD = 256
#: Longer sequences go through the fused kernel, whose blocks of scores stay in the cache. On an AMD
#: Zen 4, by AVX-512 and by AVX2, matrix multiplications of 128 tokens take 0.8 of its time, and
#: of 192 tokens up to 2.8 times as long.
LONGEST_PRODUCT = 128
#: In shorter sequences the fused kernel of float32 is not steady.
LONGEST_UNSTEADY = 256
#: Shorter rows of equal length are gathered into one matrix multiplication, since starting one
#: costs the most there. Each longer row has its own, which reads the row in place.
SHORTEST_IN_PLACE = 32
#: Fewer keys than this do not fill a vector of the CPU. A softmax over keys that are the rows of
#: the scores then takes a third of the time of one over keys that are the columns.
SHORTEST_LAST_SOFTMAX = 16
#: The number of values of 16 bits of `drop`, and the lowest of them as a signed integer.
VALUES, LOWEST_VALUE = 1 << 16, -(1 << 15)
LOWEST_64_BITS = -(1 << 63)
#: The tensor that `baddbmm` adds, times 0.
NOTHING = torch.empty((), dtype=torch.float32, device="cpu")


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
                    f"{name} and {before} are two names of one argument. Pass one of them."
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
        is_causal: Whether a query attends only to keys up to its own position.
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
        #: Set by `prepare_for_inference`: the three projections side by side.
        self.packed: Packed | None = None

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
    def all_head_size(self) -> int:
        """Width of the queries, keys and values."""
        return len(self.heads) * self.attention_head_size

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        cache: Cache | None = None,
        *,
        encoder_hidden_states: Tensor | None = None,
        layout: Layout | None = None,
        head_mask: Tensor | None = None,
        output_attentions: bool = False,
        score_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends.

        Args:
            hidden_states: (B, Q, D), or (T, D) where the layout is packed.
            attention_mask: As the backend takes it; None when everything is attended.
            cache: Cache to read and extend.
            encoder_hidden_states: (B, K, D), the encoder's output, read in cross-attention.
            layout: Of the states; None for (B, Q, D).
            head_mask: (number of original heads,): factor of each head's output (Michel et al.
                2019, equation 2).
            output_attentions: Whether to return the probabilities, even if the backend gives none.
                They are then computed separately, without dropout.
            score_mask: Broadcasts to (B, H, Q, K), bool or additive: `attention_mask` for those
                probabilities.

        Returns:
            Context in the shape of `hidden_states` but with the width of the heads that are left,
            and the probabilities (B, H, Q, K) or None.
        """
        cache = kwargs.pop("past_key_values", cache)
        probabilities: Tensor | None = None
        if layout is not None and layout.route is not Route.GRID:
            parts = self._project(hidden_states)  # (H, T, d) each
            if layout.route is Route.ROWS:
                context = self._attend(*parts, layout)
            elif layout.route is Route.SINGLE:
                context = self._attend_single(*parts, layout)
            else:
                context = self._attend_varlen(*parts, layout)
        else:
            query, key, value = self._project_padded(
                hidden_states, encoder_hidden_states, cache, layout
            )  # (B, H, Q or K, d)
            masks = self._of_heads(attention_mask), self._of_heads(score_mask)
            if self.distance_embedding is not None:
                masks = self._add_bias(query, key, *masks, output_attentions)
            context, probabilities = self._interface()(
                self,
                query,
                key,
                value,
                masks[0],
                dropout=self.dropout.p if self.training else 0.0,
                scaling=self.scaling,
                **kwargs,
            )  # (B, Q, H, d)
            if output_attentions and probabilities is None:
                probabilities = self._probabilities(query, key, masks[1])
            if layout is not None and layout.route.is_packed:
                context = layout.from_grid(context)  # (T, H, d)

        if head_mask is not None:
            # A factor on a head's probabilities is a factor on its output, so that any backend can
            # be used.
            head_mask = head_mask[self.heads].to(context.dtype)
            context = context * head_mask[:, None]
            if probabilities is not None:
                probabilities = probabilities * head_mask[:, None, None]
        return context.flatten(-2), probabilities

    takes_packed: Any = (forward,)

    def prune_heads(self, heads: set[int]) -> list[int]:
        """Removes heads by their original numbers.

        Returns:
            The columns of the context (d per head) that are left.
        """
        size = self.attention_head_size
        left = [slot for slot, head in enumerate(self.heads) if head not in heads]
        columns = [slot * size + i for slot in left for i in range(size)]
        for name in ("query", "key", "value"):
            setattr(self, name, prune_linear(getattr(self, name), columns, dim=0))
        self.heads = [self.heads[slot] for slot in left]
        return columns

    def _interface(self, backend: str | None = None) -> Callable[..., Any]:
        backend = backend or self.config._attn_implementation or "eager"
        return ALL_ATTENTION_FUNCTIONS.get_interface(backend, eager_attention_forward)

    def _project(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(T, D) or (B, S, D) to queries, keys and values, (H, T, d) or (B, H, S, d) each."""
        # Past `nn.Module.__getattr__`, whose time shows with one sentence; here as in `layers.py`.
        own, split = self._modules, (-1, self.attention_head_size)
        layers: tuple[Any, ...] = (own["query"], own["key"], own["value"])
        joined = product_of(self, states)
        if joined is not None:
            together = joined(states)
            parts = together.view(*states.shape[:-1], 3, *split)
            axes = (1, 2, 0, 3) if states.ndim == 2 else (2, 0, 3, 1, 4)
            query, key, value = parts.permute(axes).unbind()
            return query, key, value
        query, key, value = (linear(each, states).unflatten(-1, split) for each in layers)
        return query.transpose(-3, -2), key.transpose(-3, -2), value.transpose(-3, -2)

    def _project_padded(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None,
        cache: Cache | None,
        layout: Layout | None,
    ) -> list[Tensor]:
        """Queries, keys and values (B, H, Q or K, d), through the cache if there is one."""
        own: Any = cache
        if isinstance(cache, EncoderDecoderCache):
            own = cache.self_attention_cache
            if self.is_cross_attention:
                own = cache.cross_attention_cache
        elif self.is_cross_attention:
            own = None  # a plain cache holds self-attention only
        if not self.is_cross_attention:
            parts: Any = self._project(hidden_states)
            if layout is not None and layout.route.is_packed:
                parts = (layout.to_grid(x.transpose(0, 1)).transpose(1, 2) for x in parts)
            query, key, value = parts
            if own is not None:
                key, value = own.update(key, value, self.layer_idx)
            return [query, key, value]
        split = (-1, self.attention_head_size)
        query = linear(self.query, hidden_states).unflatten(-1, split).transpose(1, 2)
        if own is not None and cache.is_updated.get(self.layer_idx):  # type: ignore[union-attr]
            # The encoder's keys do not change from token to token.
            layer = own.layers[self.layer_idx]
            return [query, layer.keys, layer.values]
        assert encoder_hidden_states is not None
        key, value = (
            linear(layer, encoder_hidden_states).unflatten(-1, split).transpose(1, 2)
            for layer in (self.key, self.value)
        )
        if own is not None:
            key, value = own.update(key, value, self.layer_idx)
            cache.is_updated[self.layer_idx] = True  # type: ignore[union-attr]
        return [query, key, value]

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, layout: Layout) -> Tensor:
        """Attention within each sequence of packed tokens: (H, T, d) each, to (T, H, d)."""
        return attend_groups(
            query,
            key,
            value,
            layout.groups,
            self.scaling,
            self.dropout.p if self.training else 0.0,
            attend=functools.partial(self._interface("eager"), self) if layout.is_eager else None,
        )

    def _attend_single(self, query: Tensor, key: Tensor, value: Tensor, layout: Layout) -> Tensor:
        """The same, sequence by sequence, by the same calls whatever the others are.

        A sequence's tensors are copies: a view may begin anywhere in a vector of the CPU.
        """
        longest = LONGEST_UNSTEADY if query.dtype is torch.float32 else 0
        contexts, start = [], 0
        for rows, queries, keys in layout.groups:
            for _ in range(rows):
                q, k, v = (x[:, start : start + queries].clone() for x in (query, key, value))
                start += queries
                parts = [q]
                if 0 < keys < queries:
                    parts, k, v = [q[:, :keys], q[:, keys:]], k[:, :keys], v[:, :keys]
                for part in parts:
                    if keys and part.shape[1] <= longest:
                        contexts.append(attend_product(part, k, v, self.scaling))
                    else:
                        own = RowGroup(1, part.shape[1], keys)
                        contexts.append(attend_group(part, k, v, own, self.scaling, 0.0))
        return torch.cat(contexts) if contexts else query.transpose(0, 1)

    def _attend_varlen(self, query: Tensor, key: Tensor, value: Tensor, layout: Layout) -> Tensor:
        """The same, all sequences in one kernel."""
        queries, keys, longest_query, longest_key = layout.cumulative_lengths
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        if layout.key_index is not None:
            key, value = key[layout.key_index], value[layout.key_index]
        context: Tensor = varlen_attn(
            query.contiguous(),
            key.contiguous(),
            value.contiguous(),
            queries,
            keys,
            longest_query,
            longest_key,
        )  # scaled by 1/√d; torch 2.10 to 2.13 have no more arguments in common
        return context

    def _of_heads(self, mask: Any) -> Any:
        """Takes the heads that are left from a mask of each original head; leaves other masks."""
        heads = self.config.num_attention_heads
        is_pruned = isinstance(mask, Tensor) and mask.ndim == 4 and len(self.heads) < heads
        return mask[:, self.heads] if is_pruned and mask.shape[1] == heads else mask

    def _probabilities(self, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
        """(B, H, Q, K), for a backend that returns none."""
        if mask is not None:  # a static cache is longer than its keys
            key = key[:, :, : mask.shape[-1]]
        # In float32 or more: half precision would add an error of its own.
        precise = torch.promote_types(query.dtype, torch.float32)
        return attention_probabilities(query.to(precise), key.to(precise), mask, self.scaling).to(
            query.dtype
        )

    def _position_bias(self, query: Tensor, key: Tensor) -> Tensor:
        """The term of relative positions in the scaled scores, (B, H, Q, K).

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

    def _add_bias(
        self, query: Tensor, key: Tensor, mask: Any, score_mask: Any, output_attentions: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Position bias and mask as one additive mask, for the backend and for probabilities."""
        check_bias(self.config, self.config._attn_implementation or "eager")
        bias = self._position_bias(query, key)
        of_scores = self._with_bias(score_mask, bias) if output_attentions else None
        return self._with_bias(mask, bias), of_scores

    def _with_bias(self, attention_mask: Any, bias: Tensor) -> Tensor:
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


def prune_linear(layer: nn.Linear, left: list[int], dim: int) -> nn.Linear:
    """A smaller copy of `layer`: the outputs (dim 0) or inputs (dim 1) in `left`."""
    index = torch.tensor(left, dtype=torch.long, device=layer.weight.device)
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
            # A finite minimum, not -inf: a row that attends to no token is uniform, not NaN.
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
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attention by matrix multiplications, with the interface of transformers' backends.

    Returns:
        Context (B, Q, H, d) and the probabilities (B, H, Q, K) that gave it, after dropout.
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    probabilities = attention_probabilities(query, key, attention_mask, scaling)
    probabilities = nn.functional.dropout(probabilities, p=dropout, training=module.training)
    return torch.matmul(probabilities, value).transpose(1, 2).contiguous(), probabilities


def attend_groups(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    groups: Sequence[RowGroup],
    scaling: float | None,
    dropout: float,
    masks: Sequence[Tensor | None] = (),
    attend: Callable[..., Any] | None = None,
) -> Tensor:
    """Attention within each sequence of packed tokens.

    Args:
        query: (H, T, d); likewise key and value.
        groups: The sequences.
        scaling: 1/√d in BERT; None for that.
        dropout: Probability of dropping a weight.
        masks: Of each group, (rows or 1, H or 1, queries, keys), bool or added to the scores; None
            for no mask.
        attend: The backend; None for sdpa.

    Returns:
        (T, H, d).
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    longest: float = LONGEST_PRODUCT
    if query.dtype is not torch.float32 or not query.is_cpu or attend is not None:
        longest = 0
    elif dropout:
        # The fused kernel has none on the CPU, so torch keeps the probabilities as well.
        longest = math.inf
    elif torch.is_grad_enabled() and query.requires_grad:
        longest = 0  # gradients need the probabilities, which the fused kernel does not keep
    keys = groups[0].keys if len(groups) == 1 and groups[0].rows == 1 else 0
    if keys and attend is None:
        # One sequence: no views of its parts, whose time shows.
        mask = masks[0] if masks else None
        if keys < query.shape[1]:
            key, value = key[:, :keys], value[:, :keys]
        if query.shape[1] <= longest and (mask is None or mask.is_floating_point()):
            bias = None if mask is None else mask[0]
            return attend_product(query, key, value, scaling, dropout, bias)
        whole = query[None], key[None], value[None]
        context = nn.functional.scaled_dot_product_attention(*whole, mask, dropout, scale=scaling)
        return context[0].transpose(0, 1)
    contexts: list[Tensor] = []
    sizes = [group.rows * group.queries for group in groups]
    parts: Any = zip(*(x.split(sizes, dim=1) for x in (query, key, value)), strict=True)
    for group, (q, k, v), mask in zip(groups, parts, masks or repeat(None), strict=False):
        if mask is None and group.keys and group.queries <= longest:
            contexts += attend_rows(q, k, v, group, scaling, dropout)
        else:
            contexts.append(attend_group(q, k, v, group, scaling, dropout, mask, attend))
    if len(contexts) == 1:
        return contexts[0]
    return torch.cat(contexts or [query.transpose(0, 1)])


def attend_group(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    group: RowGroup,
    scaling: float,
    dropout: float,
    mask: Tensor | None = None,
    attend: Callable[..., Any] | None = None,
) -> Tensor:
    """One group by the backend, (rows · queries, H, d); arguments as for `attend_groups`."""
    keys = group.keys
    if not keys:
        return query.new_zeros(query.transpose(0, 1).shape)  # the softmax has no keys
    rows = [x.unflatten(1, (group.rows, -1)).transpose(0, 1) for x in (query, key, value)]
    query, key, value = rows[0], rows[1][:, :, :keys], rows[2][:, :, :keys]  # views
    if attend is not None:
        context, _ = attend(query, key, value, mask, dropout=dropout, scaling=scaling)
    else:  # without the function around it, whose time shows with one sentence
        context = nn.functional.scaled_dot_product_attention(
            query, key, value, mask, dropout, scale=scaling
        ).transpose(1, 2)
    return context.flatten(0, 1)  # from (rows, queries, H, d)


def attend_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    group: RowGroup,
    scaling: float,
    dropout: float,
) -> list[Tensor]:
    """Attention without mask over several rows of equal length, by matrix multiplications.

    Args:
        query: (H, rows · queries, d); likewise key and value.
        group: The rows; `keys` is not 0.

    Returns:
        (·, H, d) each, which together are (rows · queries, H, d).
    """
    rows, queries, keys = group
    if rows == 1:
        if keys < queries:
            key, value = key[:, :keys], value[:, :keys]
        return [attend_product(query, key, value, scaling, dropout)]
    if queries >= SHORTEST_IN_PLACE:
        parts = zip(*(x.split(queries, dim=1) for x in (query, key, value)), strict=True)
        return [attend_product(q, k[:, :keys], v[:, :keys], scaling, dropout) for q, k, v in parts]
    # (H, rows, ·, d), a view, to (H · rows, ·, d)
    q, k, v = (
        x.unflatten(1, (rows, -1))[:, :, :count].flatten(0, 1)
        for x, count in ((query, queries), (key, keys), (value, keys))
    )
    context = attend_product(q, k, v, scaling, dropout)  # (queries, H · rows, d)
    return [context.unflatten(1, (-1, rows)).permute(2, 0, 1, 3).flatten(0, 1)]


def attend_product(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
    dropout: float = 0.0,
    bias: Tensor | None = None,
) -> Tensor:
    """Attention without mask by matrix multiplications.

    Args:
        query: (H, Q, d).
        key: (H, K, d), K not 0; likewise value.
        scaling: 1/√d in BERT.
        dropout: Probability of dropping a weight.
        bias: (H, Q, K), added to the scores, or None.

    Returns:
        (Q, H, d).
    """
    added, beta = (NOTHING, 0) if bias is None else (bias, 1)
    if key.shape[1] < SHORTEST_LAST_SOFTMAX and not dropout:
        added = added if bias is None else bias.transpose(1, 2)
        scores = torch.baddbmm(added, key, query.transpose(1, 2), beta=beta, alpha=scaling)
        return torch.bmm(scores.softmax(dim=1).transpose(1, 2), value).transpose(0, 1)
    scores = torch.baddbmm(added, query, key.transpose(1, 2), beta=beta, alpha=scaling)
    weights = scores.softmax(dim=-1)
    if dropout:
        weights = drop(weights, dropout)
    return torch.bmm(weights, value).transpose(0, 1)


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
    bits.random_(LOWEST_64_BITS, None)
    is_left = bits.view(torch.int16)[:count].view(states.shape) >= LOWEST_VALUE + dropped
    return states * is_left.to(states.dtype).mul_(VALUES / (VALUES - dropped))


def takes_varlen(
    device: torch.device, dtype: torch.dtype, head_size: int, dropout: float = 0
) -> bool:
    """Whether torch's variable-length flash attention computes this: half precision on CUDA.

    It needs a GPU of compute capability 8.0, and a head size that is a multiple of 8, at most 256.
    """
    if varlen_attn is None or device.type != "cuda" or dropout:
        return False
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    is_half = dtype in (torch.float16, torch.bfloat16)
    has_kernel = head_size % 8 == 0 and head_size <= MAX_FLASH_HEAD
    return is_half and has_kernel and torch.cuda.get_device_capability(device) >= (8, 0)
