"""The layers of the model, in the order in which data flows: embeddings, the encoder's layers
(post-norm, as in Vaswani et al. 2017, section 3.1), and the modules on top of the encoder.

Notation: B batch, S sequence, T computed tokens (see `packing.py`), D hidden size, F feed-forward
width, V vocabulary. `(..., D)` is `(B, S, D)` or, packed, `(T, D)`. The parameter names are the
published checkpoints' (`cls.predictions.transform.dense.weight`, …).
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from .attention import (
    CACHE,
    BertCrossAttention,
    BertSelfAttention,
    Dropout,
    prune_linear,
    takes_cache,
)
from .configuration_bert import BertConfig, is_batch_invariant
from .cpu_kernels import is_hooked, linear, takes_onednn, type_name
from .packing import Packing, is_traced
from .route import takes_rows

#: If the activations of the feed-forward sub-layer would take more bytes than this, it is computed
#: in slices of so many tokens. The system has to provide blocks of 32 MiB or more anew each time.
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
        # What a caller without positions or token types gets; (1, positions).
        self.register_buffer("position_ids", torch.empty(1, positions, dtype=torch.long), False)
        self.register_buffer("token_type_ids", torch.empty(1, positions, dtype=torch.long), False)
        self.reset_ids()

    @torch.no_grad()
    def reset_ids(self) -> None:
        """Fills the buffers; they are no part of the state dict."""
        places = torch.arange(self.position_ids.shape[1], device=self.position_ids.device)
        init.copy_(self.position_ids, places[None])
        init.constant_(self.token_type_ids, self.first_type)

    def default_mask(self, input_ids: Tensor | None) -> Tensor | None:
        """The (B, S) mask of a call without one, or None: everything is attended."""
        return None

    @takes_cache
    def forward(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        cache_length: int = 0,
        *,
        packing: Packing | None = None,
    ) -> Tensor:
        """Embeds a batch, or its computed tokens only.

        Args:
            input_ids: (B, S) token ids; or give `inputs_embeds`.
            token_type_ids: (B, S), (1, S) or (S,); if None `first_type`.
            position_ids: (B, S), (1, S) or (S,); if None 0, 1, 2, … after the cached tokens.
            inputs_embeds: (B, S, D) instead of word embeddings.
            cache_length: Number of cached tokens before this batch.
            packing: Which tokens to embed; all if None.

        Returns:
            (B, S, D), or (T, D) when packed.
        """
        source = input_ids if input_ids is not None else inputs_embeds
        assert source is not None  # checked with a message in `checks.py`
        batch_shape = source.shape[:2]
        if packing is not None and packing.token_index is not None:
            if token_type_ids is not None:
                token_type_ids = packing.unpad(token_type_ids.expand(batch_shape))
            if position_ids is not None:
                position_ids = packing.unpad(position_ids.expand(batch_shape))
            if inputs_embeds is not None:
                inputs_embeds = packing.unpad(inputs_embeds)
            elif input_ids is not None:
                input_ids = packing.unpad(input_ids)
        if inputs_embeds is None:
            inputs_embeds = self.word_embeddings(input_ids)
        device = source.device
        # Token types and positions that are not given are the same in every row: one row of
        # them is broadcast.
        if token_type_ids is None:
            shape = batch_shape if packing is None else (1,)
            types = _rows(self.token_type_embeddings, self.first_type, 1, shape, device)
        else:
            types = self.token_type_embeddings(token_type_ids)
        embeddings = inputs_embeds + types
        if self.adds_positions:
            if position_ids is None and packing is not None:
                position_ids = packing.column
            if position_ids is None:
                start, count = cache_length, batch_shape[1]
                positions = _rows(self.position_embeddings, start, count, (1, count), device)
            else:
                positions = self.position_embeddings(position_ids)
            embeddings = embeddings + positions
        if packing is not None and packing.token_index is None:
            embeddings = embeddings.flatten(0, 1)
        return self.dropout(self.LayerNorm(embeddings))  # (B, S, D) or (T, D)

    takes_packed = (forward,)


def table_sizes(embeddings: Any, config: BertConfig) -> dict[str, int]:
    """By field of the config, how many rows the table has that was made by it."""
    tables = {
        "vocab_size": "word_embeddings",
        "max_position_embeddings": "position_embeddings",
        "type_vocab_size": "token_type_embeddings",
    }
    sizes = {field: _table_rows(getattr(embeddings, name, None)) for field, name in tables.items()}
    if not getattr(embeddings, "adds_positions", True):  # the positions are distances
        sizes["max_position_embeddings"] = config.max_position_embeddings
    return sizes


def _table_rows(table: Any) -> int:
    """The rows of an embedding table; no limit if it does not say."""
    weight, width = getattr(table, "weight", None), getattr(table, "embedding_dim", None)
    # A shard has one axis, and a weight of 4 bits another width.
    if isinstance(weight, Tensor) and weight.ndim == 2 and width in (None, weight.shape[1]):
        return weight.shape[0]
    return getattr(table, "num_embeddings", None) or sys.maxsize


def _rows(
    table: Any, start: int, count: int, shape: tuple[int, ...], device: torch.device
) -> Tensor:
    """Neighbouring rows of a table, (count, D) or (*shape, D).

    A view if no gradient, hook or trace needs more. What watches the table or replaces it gets ids
    of the whole `shape`, as in transformers.
    """
    weight = table._parameters.get("weight")
    is_plain = type(table) is nn.Embedding and type(weight) is nn.Parameter and not is_hooked(table)
    if (
        is_plain
        and table.max_norm is None
        and not torch.is_grad_enabled()
        and not is_traced(device)
    ):
        return weight[start : start + count]
    ids = torch.arange(start, start + count, device=device)
    rows: Tensor = table(ids if is_plain else ids.expand(shape))
    return rows


class BertSelfOutput(nn.Module):
    """The end of a sub-layer: projects back, adds the sub-layer's input and normalises."""

    def __init__(self, config: BertConfig, *, width: int | None = None) -> None:
        super().__init__()
        self.config = config
        self.dense = nn.Linear(width or config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        """(..., width) and the sub-layer's input (..., D) to (..., D)."""
        projected = linear(self.dense, hidden_states, None, is_batch_invariant(self.config))
        return self.LayerNorm(self.dropout(projected) + input_tensor)

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

    @takes_cache
    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Any = None,
        cache: Cache | None = None,
        *,
        kept: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """(..., D) to (..., D), or only the tokens in `kept`; and the probabilities.

        Other arguments as in `BertSelfAttention.forward`. Cross-attention reads the encoder's
        states and mask in place of its own.
        """
        context, probabilities = self.self(
            hidden_states,
            encoder_hidden_states=encoder_hidden_states,
            attention_mask=encoder_attention_mask if self.is_cross_attention else attention_mask,
            **{CACHE: cache},
            **kwargs,
        )
        if kept is not None:
            context, hidden_states = context[kept], hidden_states[kept]
        return self.output(context, hidden_states), probabilities

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
        self.config = config
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.intermediate_act_fn = activation(config)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Projects and activates."""
        invariant = is_batch_invariant(self.config)
        return linear(self.dense, hidden_states, self.intermediate_act_fn, invariant)

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
        self.is_decoder = config.is_decoder
        self.add_cross_attention = config.add_cross_attention
        self.attention = self.attention_class(config, config.is_decoder, layer_idx)
        if config.add_cross_attention:
            self.crossattention = BertAttention(config, False, layer_idx, is_cross_attention=True)
        self.intermediate = BertIntermediate(config)
        self.output = self.output_class(config)

    @takes_cache
    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Any = None,
        cache: Cache | None = None,
        *,
        head_mask: Tensor | None = None,
        score_mask: Tensor | None = None,
        encoder_score_mask: Tensor | None = None,
        with_attentions: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Runs the layer; arguments as in `BertAttention.forward`.

        Returns:
            (..., D), or (K, D) of the tokens in `kept`; `with_attentions` a tuple of it, the
            self-attention probabilities (B, H, Q, K) and those of cross-attention, or None.
        """
        own: dict[str, Any] = {"head_mask": head_mask, "score_mask": score_mask}
        hidden_states, probabilities = self.attention(
            hidden_states,
            attention_mask,
            **{CACHE: cache},
            **_given(own),
            **kwargs,
        )
        cross_probabilities = None
        if encoder_hidden_states is not None and self.is_decoder:
            if not self.add_cross_attention:
                raise ValueError(
                    "encoder_hidden_states given to a layer without cross-attention; set "
                    "add_cross_attention=True in its config"
                )
            hidden_states, cross_probabilities = self.crossattention(
                hidden_states,
                None,
                encoder_hidden_states,
                encoder_attention_mask,
                **{CACHE: cache},
                **_given({"score_mask": encoder_score_mask}),
                **kwargs,
            )
        if self.chunk_size_feed_forward:
            # Tokens do not see each other here, so a bounded slice at a time bounds the memory of
            # the (..., F) activations. The last slice may be shorter.
            chunks = hidden_states.split(self.chunk_size_feed_forward, dim=-2)
            hidden_states = torch.cat([self.feed_forward_chunk(part) for part in chunks], dim=-2)
        elif self._is_sliced(hidden_states):
            slices = hidden_states.flatten(0, -2).split(SLICE_TOKENS)
            shape = hidden_states.shape
            hidden_states = torch.cat(list(map(self.feed_forward_chunk, slices))).view(shape)
        else:
            hidden_states = self.feed_forward_chunk(hidden_states)
        if with_attentions:
            return hidden_states, probabilities, cross_probabilities
        return hidden_states

    def _is_sliced(self, hidden_states: Tensor) -> bool:
        """Whether oneDNN computes the (..., F) activations and they are too large for one block."""
        inner: Any = getattr(self.intermediate, "dense", None)
        return (
            # With gradients all activations are kept anyway; dropout draws in a fixed order.
            not self.training
            and not torch.is_grad_enabled()
            and takes_onednn(inner, hidden_states)
            and hidden_states.shape[:-1].numel() * inner.out_features * 4 > LARGEST_BLOCK
            # A hook, or a module of someone else, must see all tokens at once.
            and not any(
                is_hooked(module) or not takes_rows(type(module))
                for module in chain(self.intermediate.modules(), self.output.modules())
            )
        )

    def feed_forward_chunk(self, attention_output: Tensor) -> Tensor:
        """(..., D) to (..., D)."""
        return self.output(self.intermediate(attention_output), attention_output)

    takes_packed = (forward, feed_forward_chunk)


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    """Those that are not None. Modules of someone else are called as in transformers."""
    return {name: value for name, value in arguments.items() if value is not None}


class BertEncoder(nn.Module):
    """The layers, one after the other."""

    def __init__(self, config: BertConfig, *, layer_class: type[BertLayer] = BertLayer) -> None:
        super().__init__()
        self.config = config
        self.layer = nn.ModuleList(layer_class(config, i) for i in range(config.num_hidden_layers))
        #: Set by `prepare_for_inference`: packed layers to run in place of `layer`.
        self.prepared: Any = None

    @takes_cache
    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Any = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        *,
        packing: Packing | None = None,
        head_mask: Tensor | None = None,
        output_hidden_states: bool | int | Sequence[int] = False,
        output_attentions: bool = False,
        prepared: Any = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Runs every layer and collects what is asked for.

        Args:
            hidden_states: (..., D) embeddings.
            head_mask: (layers, H) factors, or None.
            output_hidden_states: True for all; numbers (0 the embeddings, -1 the last layer) keep
                those and leave None for the others.
            output_attentions: Whether to collect the probabilities.
            packing: Layout of packed hidden states.
            prepared: A `PreparedEncoder` whose layers run in place of these, on packed states.
            **kwargs: As in `BertLayer.forward`.
        """
        wanted = _wanted_states(output_hidden_states, len(self.layer) + 1)
        states: list[Tensor | None] = []
        attentions: list[Tensor] = []
        cross_attentions: list[Tensor] = []

        def keep(hidden_states: Tensor) -> Tensor:
            if wanted is None or len(states) not in wanted:
                states.append(None)
                return hidden_states
            if packing is None:
                states.append(hidden_states)
                return hidden_states
            padded = packing.pad(hidden_states)
            states.append(padded)
            if not torch.is_grad_enabled():
                return hidden_states
            # The gradient must pass through what the caller holds (`retain_grad`).
            return packing.refill(padded, hidden_states)

        hidden_states = keep(hidden_states)
        last = len(self.layer) - 1
        own: dict[str, Any] = {"packing": packing}
        if output_attentions:
            own |= {"output_attentions": True, "with_attentions": True}
            for index, layer in enumerate(self.layer):
                if not takes_rows(type(layer)):
                    raise ValueError(
                        f"output_attentions is asked for, and layer {index} "
                        f"({type_name(type(layer))}) gives none; leave it out"
                    )
        if prepared is not None:
            hidden_states = prepared(hidden_states, packing, keep)
        for index, layer in enumerate(self.layer if prepared is None else ()):
            own["head_mask"] = None if head_mask is None else head_mask[index]
            own["kept"] = packing.kept if packing is not None and index == last else None
            # Inputs with gradients are positional: reentrant checkpointing sees no others.
            output = layer(
                hidden_states,
                attention_mask,
                encoder_hidden_states,
                encoder_attention_mask=encoder_attention_mask,
                **{CACHE: cache},  # by a name that gradient checkpointing knows
                **_given(own),
                **kwargs,
            )
            if output_attentions:
                output, probabilities, cross_probabilities = output
                if probabilities is None:
                    raise ValueError(
                        f"output_attentions is asked for, and the attention of layer {index} "
                        f"({type_name(type(layer.attention))}) gives none; leave it out"
                    )
                attentions.append(probabilities)
                if cross_probabilities is not None:
                    cross_attentions.append(cross_probabilities)
            hidden_states = keep(output)

        return BaseModelOutputWithPastAndCrossAttentions(
            hidden_states,
            cache if use_cache else None,
            None if wanted is None else tuple(states),
            tuple(attentions) if output_attentions else None,
            tuple(cross_attentions) if cross_attentions else None,
        )

    takes_packed = (forward,)


def _wanted_states(selection: bool | int | Sequence[int], count: int) -> set[int] | None:
    """Numbers of the hidden states to keep; None if none are asked for."""
    if isinstance(selection, bool):
        return set(range(count)) if selection else None
    numbers = [selection] if isinstance(selection, int) else list(selection)
    return {number % count for number in numbers if -count <= number < count}


class BertPooler(nn.Module):
    """tanh(W·h + b) of the first token, the [CLS]."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = nn.Tanh()

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(B, S, D) to (B, D)."""
        first, invariant = hidden_states[:, 0], is_batch_invariant(self.config)
        return linear(self.dense, first, self.activation, invariant)

    takes_packed = (forward,)


class BertPredictionHeadTransform(nn.Module):
    """The layer before the masked-LM decoder: (..., D) to (..., D)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.transform_act_fn = activation(config)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Projects, activates, normalises."""
        invariant = is_batch_invariant(self.config)
        return self.LayerNorm(linear(self.dense, hidden_states, self.transform_act_fn, invariant))

    takes_packed = (forward,)


class BertLMPredictionHead(nn.Module):
    """Scores over the vocabulary: (..., D) to (..., V)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.transform = BertPredictionHeadTransform(config)
        # Tied to the word embeddings, unless the config says otherwise.
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        # Checkpoints have `decoder.bias` under this name as well; the two are tied.
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        #: Set by `prepare_for_inference`: packed weights to use in place of these.
        self.prepared: Any = None

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Logits before the softmax."""
        if self.prepared is not None:
            tokens = hidden_states.numel() // hidden_states.shape[-1]
            prepared = self.prepared.current(self, tokens)
            if prepared is not None:
                return prepared(hidden_states)
        states = self.transform(hidden_states)
        return linear(self.decoder, states, None, is_batch_invariant(self.config))

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
        self.config = config
        self.seq_relationship = nn.Linear(config.hidden_size, 2)

    def forward(self, pooled_output: Tensor) -> Tensor:
        """(B, D) to (B, 2): is the next sentence, is not (codertimo: is not, is)."""
        return linear(self.seq_relationship, pooled_output, None, is_batch_invariant(self.config))


class BertPreTrainingHeads(nn.Module):
    """Both pre-training heads."""

    def __init__(
        self, config: BertConfig, *, head_class: type[nn.Module] = BertLMPredictionHead
    ) -> None:
        super().__init__()
        self.config = config
        self.predictions: Any = head_class(config)
        self.seq_relationship = nn.Linear(config.hidden_size, 2)

    def forward(self, sequence_output: Tensor, pooled_output: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, D) and (B, D) to (B, S, V) and (B, 2)."""
        invariant = is_batch_invariant(self.config)
        pair = linear(self.seq_relationship, pooled_output, None, invariant)
        return self.predictions(sequence_output), pair

    takes_packed = (forward,)
