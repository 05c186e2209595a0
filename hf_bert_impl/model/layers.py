"""The layers of the model, in the order in which data flows: embeddings, the encoder's layers
(post-norm, as in Vaswani et al. 2017, section 3.1), and the modules on top of the encoder.

Notation: B batch, S sequence, T computed tokens (see `layout.py`), D hidden size, F feed-forward
width, V vocabulary. `(..., D)` is `(B, S, D)` or, packed, `(T, D)`. The parameter names are the
published checkpoints' (`cls.predictions.transform.dense.weight`, …).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from .attention import BertCrossAttention, BertSelfAttention, Dropout, prune_linear
from .configuration_bert import BertConfig
from .layout import Layout
from .linear import LAYER_NORM, linear, product_of, type_name
from .masks import CACHE
from .route import Route

#: If the activations of the feed-forward sub-layer would take more bytes than this, it is computed
#: in slices of so many tokens. The system allocates blocks of 32 MiB or more each time.
LARGEST_BLOCK = 24 << 20
SLICE_TOKENS = 512


def activation(config: BertConfig) -> Callable[[Tensor], Tensor]:
    """The activation that `config.hidden_act` names, or is."""
    return ACT2FN[config.hidden_act] if isinstance(config.hidden_act, str) else config.hidden_act


class SinusoidalPositions(nn.Module):
    """The fixed position table of Vaswani et al. 2017, section 3.5.

    `table[p, 2i] = sin(p / 10000^(2i/D))` and `table[p, 2i+1] = cos(p / 10000^(2i/D))`.
    It is computed, not learned, so it is no part of the state dict.
    """

    table: Tensor

    def __init__(self, num_positions: int, hidden_size: int) -> None:
        super().__init__()
        self.num_embeddings = num_positions
        table = torch.empty(num_positions, hidden_size)
        self.register_buffer("table", table, persistent=False)
        self.reset_table()  # `_init_weights` does it again for a model that was built on meta

    @torch.no_grad()
    def reset_table(self) -> None:
        """Fills the table, computed in float64 so that far positions keep their phase."""
        num_positions, hidden_size = self.table.shape
        position = torch.arange(num_positions, dtype=torch.float64)[:, None]
        pair = torch.arange(0, hidden_size, 2, dtype=torch.float64)
        angle = position * torch.exp(pair * (-math.log(10000.0) / hidden_size))
        table = torch.empty(num_positions, hidden_size, dtype=torch.float64)
        table[:, 0::2] = angle.sin()
        table[:, 1::2] = angle.cos()[:, : hidden_size // 2]
        init.copy_(self.table, table.to(self.table))

    def forward(self, position_ids: Tensor) -> Tensor:
        """Position ids of any shape to `(..., D)`."""
        return self.table[position_ids]

    takes_packed = (forward,)


class BertEmbeddings(nn.Module):
    """Sum of word, position and token-type embeddings, normalised.

    With relative positions the model keeps its (unused) `position_embeddings`, because checkpoints
    of that kind have them: transformers 4 saved them although it never added them.
    """

    #: The token type of a first sentence.
    first_type = 0
    position_ids: Tensor
    token_type_ids: Tensor

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        positions, width = config.max_position_embeddings, config.hidden_size
        self.word_embeddings = nn.Embedding(
            config.vocab_size, width, padding_idx=config.pad_token_id
        )
        self.position_embeddings: nn.Module
        if config.position_embedding_type == "sinusoidal":
            self.position_embeddings = SinusoidalPositions(positions, width)
        else:
            self.position_embeddings = nn.Embedding(positions, width)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.LayerNorm: nn.Module = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.adds_positions = not config.position_embedding_type.startswith("relative")
        # The defaults for calls without positions or token types; (1, positions).
        self.register_buffer("position_ids", torch.empty(1, positions, dtype=torch.long), False)
        self.register_buffer("token_type_ids", torch.empty(1, positions, dtype=torch.long), False)
        self.reset_ids()

    @torch.no_grad()
    def reset_ids(self) -> None:
        """Fills the buffers; they are no part of the state dict."""
        places = torch.arange(self.position_ids.shape[1], device=self.position_ids.device)
        init.copy_(self.position_ids, places[None])
        init.constant_(self.token_type_ids, self.first_type)

    def forward(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        cache_length: int = 0,
        *,
        past_key_values_length: int = 0,
        is_bare: bool = False,
    ) -> Tensor:
        """Embeds a batch, or packed tokens.

        Args:
            input_ids: (B, S) or (T,) token ids; or give `inputs_embeds`.
            token_type_ids: (B, S), (1, S), (S,) or (T,); if None those of the buffer
                `token_type_ids` at the positions.
            position_ids: Likewise; if None those of the buffer `position_ids`, which holds
                0, 1, 2, …, after the cached tokens.
            inputs_embeds: (..., D) instead of word embeddings.
            is_bare: As in `Layout`.
            cache_length: Number of cached tokens before this batch.
            past_key_values_length: `cache_length` by the name of transformers before 5.24.

        Returns:
            (..., D).
        """
        # Not by `nn.Module.__getattr__`, whose time can be measured; so elsewhere.
        own: Any = self._modules
        if is_bare:
            own = {name: part.forward for name, part in own.items()}
        states: Any = own["word_embeddings"](input_ids) if inputs_embeds is None else inputs_embeds
        shape = states.shape[:-1]
        buffers: Any = self._buffers
        if position_ids is None:
            start = cache_length or past_key_values_length
            position_ids = buffers["position_ids"][:, start : start + shape[-1]]
            position_ids = position_ids if len(shape) > 1 else position_ids[0]
        if token_type_ids is None:
            types = buffers["token_type_ids"][0].index_select(0, position_ids.flatten())
            token_type_ids = types.view_as(position_ids).expand(shape)
        states = states + own["token_type_embeddings"](token_type_ids)
        if self.adds_positions:
            states = states + own["position_embeddings"](position_ids)
        states, dropout = own["LayerNorm"](states), self._modules["dropout"]
        if is_bare and type(dropout) is Dropout and not dropout.training:
            return states
        return own["dropout"](states)

    takes_packed = (forward,)


class BertSelfOutput(nn.Module):
    """The end of a sub-layer: projects back, adds the sub-layer's input and normalises."""

    def __init__(self, config: BertConfig, *, width: int | None = None) -> None:
        super().__init__()
        self.dense = nn.Linear(width or config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        """(..., width) and the sub-layer's input (..., D) to (..., D)."""
        own: Any = self._modules
        dense, dropout = own["dense"], own["dropout"]
        product = product_of(dense, hidden_states)
        if product is None or dropout.training or type(dropout) is not Dropout:
            states = dropout(linear(dense, hidden_states)) + input_tensor
        else:
            states = product(hidden_states, input_tensor)
            norm = own["LayerNorm"]
            if type(norm).forward is LAYER_NORM:  # without the call, whose time shows
                scale, shift = norm._parameters["weight"], norm._parameters["bias"]
                return torch.layer_norm(states, norm.normalized_shape, scale, shift, norm.eps)
        return own["LayerNorm"](states)

    takes_packed: Any = (forward,)


class BertAttention(nn.Module):
    """An attention sub-layer: attend, project, add, normalise."""

    def __init__(
        self,
        config: BertConfig,
        is_causal: bool = False,
        layer_idx: int | None = None,
        is_cross_attention: bool = False,
    ) -> None:
        super().__init__()
        self.is_cross_attention = is_cross_attention
        kind = BertCrossAttention if is_cross_attention else BertSelfAttention
        self.self = kind(config, is_causal, layer_idx)
        self.output = BertSelfOutput(config, width=self.self.all_head_size)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Any = None,
        cache: Cache | None = None,
        *,
        outputs: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(..., D) to (..., D), or only the tokens in `outputs`; and the probabilities.

        Other arguments as in `BertSelfAttention.forward`. Cross-attention reads the encoder's
        states and mask instead of its own.
        """
        attend: Any = self._modules["self"]
        output: Any = self._modules["output"]
        layout = kwargs.get("layout")
        if layout is None:
            kwargs[CACHE] = kwargs.pop("past_key_values", cache)
            kwargs["encoder_hidden_states"] = encoder_hidden_states
            kwargs["attention_mask"] = attention_mask
            if self.is_cross_attention:
                kwargs["attention_mask"] = encoder_attention_mask
        elif layout.is_bare:
            attend, output = attend.forward, output.forward
        if layout is not None and attention_mask is not None:
            kwargs["attention_mask"] = attention_mask
        context, probabilities = attend(hidden_states, **kwargs)
        if outputs is not None:
            context, hidden_states = context[outputs], hidden_states[outputs]
        return output(context, hidden_states), probabilities

    takes_packed: Any = (forward,)

    def prunable(self) -> Iterator[tuple[str, nn.Module]]:
        """The linear layers that `prune_heads` makes smaller ones of, with their names."""
        for name in ("query", "key", "value"):
            yield f"self.{name}", getattr(self.self, name)
        yield "output.dense", self.output.dense

    def prune_heads(self, heads: set[int]) -> None:
        """Removes heads by their original numbers, and the columns that read them."""
        self.output.dense = prune_linear(self.output.dense, self.self.prune_heads(heads), dim=1)


class BertIntermediate(nn.Module):
    """First half of the feed-forward sub-layer: (..., D) to (..., F)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.intermediate_act_fn = activation(config)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Projects and activates."""
        own: Any = self._modules
        return linear(
            own["dense"], hidden_states, own.get("intermediate_act_fn") or self.intermediate_act_fn
        )

    takes_packed = (forward,)


class BertOutput(BertSelfOutput):
    """Second half: (..., F) to (..., D), plus the sub-layer's input, normalised."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, width=config.intermediate_size)


class BertLayer(GradientCheckpointingLayer):
    """Self-attention, cross-attention in a decoder that has it, feed-forward."""

    attention_class: type[BertAttention] = BertAttention
    output_class: type[BertOutput] = BertOutput

    def __init__(self, config: BertConfig, layer_idx: int | None = None) -> None:
        super().__init__()
        self.chunk_size_feed_forward = config.chunk_size_feed_forward
        self.seq_len_dim = 1
        self.inner_bytes = 4 * config.intermediate_size
        self.is_decoder = config.is_decoder
        self.add_cross_attention = config.add_cross_attention
        self.attention = self.attention_class(config, config.is_decoder, layer_idx)
        if config.add_cross_attention:
            self.crossattention = BertAttention(config, False, layer_idx, is_cross_attention=True)
        self.intermediate = BertIntermediate(config)
        self.output = self.output_class(config)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Any = None,
        cache: Cache | None = None,
        *,
        encoder_score_mask: Tensor | None = None,
        with_attentions: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Runs the layer; arguments as in `BertAttention.forward`.

        Returns:
            (..., D), or (N, D) of the tokens in `outputs`. With `with_attentions` a tuple of it,
            the probabilities (B, H, Q, K) of self-attention, and of cross-attention or None.
        """
        layout = kwargs.get("layout")
        attend: Any = self._modules["attention"]
        is_bare = layout is not None and layout.is_bare
        if layout is None:
            kwargs[CACHE] = cache = kwargs.pop("past_key_values", cache)
        elif is_bare:
            attend = attend.forward
        hidden_states, probabilities = attend(hidden_states, attention_mask, **kwargs)
        cross_probabilities = None
        if encoder_hidden_states is not None and self.is_decoder:
            kwargs |= {"head_mask": None, "score_mask": encoder_score_mask}
            hidden_states, cross_probabilities = self._attend_across(
                hidden_states, encoder_hidden_states, encoder_attention_mask, kwargs
            )
        size = self.chunk_size_feed_forward
        if layout is not None and hidden_states.shape[0] * self.inner_bytes > LARGEST_BLOCK:
            # With gradients all activations stay in memory anyway; dropout draws in a fixed order.
            is_free = hidden_states.is_cpu and not (self.training or torch.is_grad_enabled())
            size = size or SLICE_TOKENS * is_free
        if size:
            # Tokens do not depend on each other here, so a bounded slice at a time bounds the
            # memory of the (..., F) activations. The last slice may be shorter.
            chunks = hidden_states.split(size, dim=-2)
            hidden_states = torch.cat([self.feed_forward_chunk(part) for part in chunks], dim=-2)
        elif is_bare:
            hidden_states = self.feed_forward_chunk(hidden_states, True)
        else:
            hidden_states = self.feed_forward_chunk(hidden_states)
        if with_attentions:
            return hidden_states, probabilities, cross_probabilities
        return hidden_states

    def _attend_across(
        self, states: Tensor, encoder_states: Tensor, mask: Any, options: dict[str, Any]
    ) -> tuple[Tensor, Tensor | None]:
        if not self.add_cross_attention:
            raise ValueError(
                "encoder_hidden_states given to a layer without cross-attention. Set "
                "add_cross_attention=True in its config."
            )
        given = {name: value for name, value in options.items() if value is not None}
        attended: tuple[Tensor, Tensor | None] = self.crossattention(
            states, None, encoder_states, mask, **given
        )
        return attended

    def feed_forward_chunk(self, attention_output: Tensor, is_bare: bool = False) -> Tensor:
        """(..., D) to (..., D); `is_bare` as in `Layout`."""
        first: Any = self._modules["intermediate"]
        second: Any = self._modules["output"]
        if is_bare:
            first, second = first.forward, second.forward
        return second(first(attention_output), attention_output)

    takes_packed = (forward, feed_forward_chunk)


class BertEncoder(nn.Module):
    """The layers, one after the other."""

    def __init__(self, config: BertConfig, *, layer_class: type[BertLayer] = BertLayer) -> None:
        super().__init__()
        self.config = config
        self.layer = nn.ModuleList(layer_class(config, i) for i in range(config.num_hidden_layers))

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Any = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        *,
        layout: Layout | None = None,
        head_mask: Tensor | None = None,
        output_hidden_states: bool | int | Sequence[int] = False,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Runs every layer and collects what is asked for.

        Args:
            hidden_states: (..., D) embeddings.
            head_mask: (layers, H) factors, or None.
            output_hidden_states: True for all; numbers (0 the embeddings, -1 the last layer) for
                those, and None for the others.
            output_attentions: Whether to collect the probabilities.
            layout: Of the states; None for (B, S, D).
            **kwargs: As in `BertLayer.forward`.
        """
        states, layers = hidden_states, self.layer
        if layout is not None:
            if layout.route is Route.GRID:
                kwargs["attention_mask"] = attention_mask
            return self._forward_packed(states, layout, head_mask, output_hidden_states, kwargs)
        cache = kwargs.pop("past_key_values", cache)
        collected = _Collected(output_hidden_states, len(layers) + 1)
        states = collected.take(states)
        attentions: tuple[list[Any], list[Any]] = [], []
        # Modules of other libraries are called as in transformers.
        own = kwargs | {"encoder_attention_mask": encoder_attention_mask, CACHE: cache}
        if output_attentions:
            own |= {"output_attentions": True, "with_attentions": True}
            self._check_attentions()
        for index, layer in enumerate(layers):
            if head_mask is not None:
                own["head_mask"] = head_mask[index]
            # Inputs with gradients are positional: reentrant checkpointing sees no others.
            states = layer(states, attention_mask, encoder_hidden_states, **own)
            if output_attentions:
                states, *probabilities = states
                for found, each in zip(attentions, probabilities, strict=True):
                    found.append(each)
            states = collected.take(states)
        return BaseModelOutputWithPastAndCrossAttentions(
            states,
            cache if use_cache else None,
            collected.all,
            self._attentions(attentions[0]) if output_attentions else None,
            tuple(found for found in attentions[1] if found is not None) or None,
        )

    def _forward_packed(
        self, states: Tensor, layout: Layout, head_mask: Any, selection: Any, given: dict[str, Any]
    ) -> tuple[Tensor, tuple[Any, ...] | None]:
        """The same for packed states: the last ones, and all that the caller requested."""
        layers: Any = vars(self.layer)["_modules"]
        collected = None
        if selection is not False:
            collected = _Collected(selection, len(layers) + 1, layout)
            states = collected.take(states)
        given["layout"] = layout
        if layout.outputs is not None and not layers:
            states = states[layout.outputs]
        last = len(layers) - 1
        for index, layer in enumerate(layers.values()):
            if head_mask is not None:
                given["head_mask"] = head_mask[index]
            if index == last:
                given["outputs"] = layout.outputs
            states = (layer.forward if layout.is_bare else layer)(states, **given)
            if collected is not None:
                states = collected.take(states)
        return states, None if collected is None else collected.all

    def _check_attentions(self) -> None:
        """Raises ValueError if a module instead of a layer gives no probabilities."""
        for index, layer in enumerate(self.layer):
            if not isinstance(layer, BertLayer):
                raise _gives_none(index, layer)

    def _attentions(self, found: list[Any]) -> tuple[Tensor, ...]:
        for index, probabilities in enumerate(found):
            if probabilities is None:
                raise _gives_none(index, self.layer[index].attention)
        return tuple(found)

    takes_packed = (forward,)


class _Collected:
    """The requested hidden states.

    Args:
        selection: True for all, or numbers, of which -1 is the last.
        count: The number of all hidden states.
        layout: Of the states; None for (B, S, D).
    """

    def __init__(
        self, selection: bool | int | Sequence[int], count: int, layout: Layout | None = None
    ) -> None:
        numbers = [selection] if isinstance(selection, int) else list(selection)
        if isinstance(selection, bool):
            numbers = list(range(count * selection))
        self.selected = {number % count for number in numbers if -count <= number < count}
        self.layout = layout
        self.is_asked = selection is not False
        self.states: list[Tensor | None] = []

    @property
    def all(self) -> tuple[Tensor | None, ...] | None:
        """The states taken so far; None if none is requested."""
        return tuple(self.states) if self.is_asked else None

    def take(self, hidden_states: Tensor) -> Tensor:
        """Takes the next states, (B, S, D), or None if not requested; returns them."""
        layout = self.layout
        if len(self.states) not in self.selected:
            self.states.append(None)
            return hidden_states
        if layout is None:
            self.states.append(hidden_states)
            return hidden_states
        padded = layout.pad(hidden_states)
        self.states.append(padded)
        if not torch.is_grad_enabled():
            return hidden_states
        # The gradient must pass through what the caller holds (`retain_grad`).
        return layout.refill(padded, hidden_states)


def _gives_none(index: int, module: Any) -> ValueError:
    return ValueError(
        f"output_attentions=True needs layers that return probabilities. Layer {index} "
        f"({type_name(type(module))}) returns none. Set output_attentions=False."
    )


class BertPooler(nn.Module):
    """tanh(W·h + b) of the first token, the [CLS]."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = nn.Tanh()

    def forward(self, first_token: Tensor) -> Tensor:
        """(B, 1, D) to (B, D).

        A call with padding, as transformers computes it, gives (B, S, D). So read `[:, 0]` alone. A
        pooler that reads other tokens may not declare `takes_packed`: it gets (B, S, D) then.
        """
        return linear(self.dense, first_token[:, 0], self.activation)

    takes_packed = (forward,)


class BertPredictionHeadTransform(nn.Module):
    """The layer before the masked-LM decoder: (..., D) to (..., D)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.transform_act_fn = activation(config)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Projects, activates, normalises."""
        return self.LayerNorm(linear(self.dense, hidden_states, self.transform_act_fn))

    takes_packed = (forward,)


class BertLMPredictionHead(nn.Module):
    """Scores over the vocabulary: (..., D) to (..., V)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.transform = BertPredictionHeadTransform(config)
        # Tied to the word embeddings, unless the config says otherwise.
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        # Checkpoints have `decoder.bias` under this name as well; the two are tied.
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Logits before the softmax."""
        return linear(self.decoder, self.transform(hidden_states))

    takes_packed = (forward,)


class BertOnlyMLMHead(nn.Module):
    """The masked-LM head alone."""

    def __init__(
        self, config: BertConfig, *, head_class: type[nn.Module] = BertLMPredictionHead
    ) -> None:
        super().__init__()
        self.predictions: Any = head_class(config)

    def forward(self, sequence_output: Tensor) -> Tensor:
        """(..., D) to (..., V)."""
        return self.predictions(sequence_output)

    takes_packed = (forward,)


class BertOnlyNSPHead(nn.Module):
    """The next-sentence head alone."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.seq_relationship = nn.Linear(config.hidden_size, 2)

    def forward(self, pooled_output: Tensor) -> Tensor:
        """(B, D) to (B, 2): is the next sentence, is not (codertimo: is not, is)."""
        return linear(self.seq_relationship, pooled_output)


class BertPreTrainingHeads(nn.Module):
    """Both pre-training heads."""

    def __init__(
        self, config: BertConfig, *, head_class: type[nn.Module] = BertLMPredictionHead
    ) -> None:
        super().__init__()
        self.predictions: Any = head_class(config)
        self.seq_relationship = nn.Linear(config.hidden_size, 2)

    def forward(self, sequence_output: Tensor, pooled_output: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, D) and (B, D) to (B, S, V) and (B, 2)."""
        return self.predictions(sequence_output), linear(self.seq_relationship, pooled_output)

    takes_packed = (forward,)
