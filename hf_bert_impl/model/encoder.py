"""The stack of Transformer encoder layers, post-norm as in Vaswani et al. 2017, section 3.1, or
pre-norm as in codertimo/BERT-pytorch.

Notation: B batch, S sequence, T computed tokens (see `padding.py`), D hidden size, F feed-forward
width. `(..., D)` is `(B, S, D)` or, packed, `(T, D)`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from .attention import BertAttention
from .configuration_bert import BertConfig
from .dropout import Dropout
from .linear import is_hooked, linear, takes_onednn
from .memory import LARGEST_BLOCK
from .padding import Packing

#: Of the feed-forward sub-layer where its activations are larger than a block that is kept.
SLICE_TOKENS = 512


def activation(config: BertConfig) -> Callable[[Tensor], Tensor]:
    """The activation that `config.hidden_act` names, or is."""
    return ACT2FN[config.hidden_act] if isinstance(config.hidden_act, str) else config.hidden_act


class BertIntermediate(nn.Module):
    """First half of the feed-forward sub-layer: (..., D) to (..., F)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.intermediate_act_fn = activation(config)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Projects and activates."""
        return linear(self.dense, hidden_states, self.intermediate_act_fn)


class BertOutput(nn.Module):
    """Second half: (..., F) to (..., D), plus the sub-layer's input, normalised."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.intermediate_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        """Projects back, adds and normalises."""
        projected = linear(self.dense, hidden_states)
        return self.LayerNorm(self.dropout(projected) + input_tensor)


class DeviationLayerNorm(nn.LayerNorm):
    """codertimo's LayerNorm: w · (x − mean) / (s + eps) + b, s the unbiased standard deviation.

    Its checkpoints call w and b `a_2` and `b_2` (`bert_pytorch/model/utils/layer_norm.py`).
    """

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(..., D) to (..., D), computed in float32 at least."""
        dtype = hidden_states.dtype
        precise = hidden_states.to(torch.promote_types(dtype, torch.float32))
        deviation, mean = torch.std_mean(precise, dim=-1, keepdim=True)  # (..., 1)
        normed = (precise - mean) / (deviation + self.eps)
        return (self.weight * normed + self.bias).to(dtype)


class PreNormAttention(BertAttention):
    """codertimo's attention sub-layer: normalise, attend, project, add."""

    def __init__(self, config: BertConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.output.LayerNorm = DeviationLayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(
        self, hidden_states: Tensor, kept: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """As `BertAttention.forward`."""
        output = self.output
        context, probabilities = self.self(output.LayerNorm(hidden_states), **kwargs)
        if kept is not None:
            context, hidden_states = context[kept], hidden_states[kept]
        projected = linear(output.dense, context)
        return hidden_states + output.dropout(projected), probabilities


class PreNormOutput(BertOutput):
    """Second half of codertimo's feed-forward sub-layer, with the dropout around it.

    One drops the activations, one what is added, one the whole layer's output.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        #: Of the sub-layer's input, so `BertLayer` calls it.
        self.LayerNorm = DeviationLayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        """Projects back and adds."""
        projected = linear(self.dense, self.dropout(hidden_states))
        return self.dropout(input_tensor + self.dropout(projected))


class BertLayer(GradientCheckpointingLayer):
    """Self-attention, cross-attention in a decoder that has it, feed-forward."""

    def __init__(self, config: BertConfig, layer_idx: int) -> None:
        super().__init__()
        self.chunk_size_feed_forward = config.chunk_size_feed_forward
        self.is_pre_norm = config.variant == "codertimo"
        self.attention = (
            PreNormAttention(config, layer_idx)
            if self.is_pre_norm
            else BertAttention(config, layer_idx, is_causal=config.is_decoder)
        )
        if config.add_cross_attention:
            self.crossattention = BertAttention(config, layer_idx, is_cross_attention=True)
        self.intermediate = BertIntermediate(config)
        self.output = PreNormOutput(config) if self.is_pre_norm else BertOutput(config)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Any = None,
        past_key_values: Cache | None = None,
        packing: Packing | None = None,
        head_mask: Tensor | None = None,
        output_attentions: bool = False,
        score_mask: Tensor | None = None,
        encoder_score_mask: Tensor | None = None,
        kept: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Runs the layer; arguments as in `BertSelfAttention.forward`.

        Args:
            kept: (K,) the packed tokens whose output is read; all if None. The others are keys and
                values only.

        Returns:
            (..., D), or (K, D); with `output_attentions` a tuple of it, the self-attention
            probabilities (B, H, Q, K) and those of cross-attention, or None.
        """
        hidden_states, probabilities = self.attention(
            hidden_states,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            packing=packing,
            head_mask=head_mask,
            output_attentions=output_attentions,
            score_mask=score_mask,
            kept=kept,
            **kwargs,
        )
        cross_probabilities = None
        if encoder_hidden_states is not None:
            hidden_states, cross_probabilities = self.crossattention(
                hidden_states,
                attention_mask=encoder_attention_mask,
                key_value_states=encoder_hidden_states,
                past_key_values=past_key_values,
                output_attentions=output_attentions,
                score_mask=encoder_score_mask,
                **kwargs,
            )
        if self.chunk_size_feed_forward:
            # Tokens do not see each other here, so a bounded slice at a time bounds the memory of
            # the (..., F) activations. The last slice may be shorter.
            chunks = hidden_states.split(self.chunk_size_feed_forward, dim=-2)
            hidden_states = torch.cat([self.feed_forward(chunk) for chunk in chunks], dim=-2)
        elif self._is_sliced(hidden_states):
            slices = hidden_states.flatten(0, -2).split(SLICE_TOKENS)
            shape = hidden_states.shape
            hidden_states = torch.cat([self.feed_forward(part) for part in slices]).view(shape)
        else:
            hidden_states = self.feed_forward(hidden_states)
        if output_attentions:
            return hidden_states, probabilities, cross_probabilities
        return hidden_states

    def _is_sliced(self, hidden_states: Tensor) -> bool:
        """Whether the (..., F) activations are too large to be had at once, as oneDNN has them."""
        inner: Any = self.intermediate.dense
        return (
            # With gradients all activations stay, and the draws of dropout have an order.
            not self.training
            and not torch.is_grad_enabled()
            and takes_onednn(inner, hidden_states)
            and hidden_states.shape[:-1].numel() * inner.out_features * 4 > LARGEST_BLOCK
            # A hook is to see all tokens at once.
            and not any(is_hooked(module) for module in self.intermediate.modules())
            and not any(is_hooked(module) for module in self.output.modules())
        )

    def feed_forward(self, hidden_states: Tensor) -> Tensor:
        """(..., D) to (..., D)."""
        normed = self.output.LayerNorm(hidden_states) if self.is_pre_norm else hidden_states
        return self.output(self.intermediate(normed), hidden_states)


@dataclass
class EncoderStates:
    """What a pass through the encoder leaves."""

    #: (..., D) after the last layer.
    hidden_states: Tensor
    #: (B, S, D) each: the embeddings and the output of every layer, where asked for.
    all_hidden_states: tuple[Tensor | None, ...] | None
    #: (B, H, Q, K) a layer.
    attentions: tuple[Tensor, ...] | None
    cross_attentions: tuple[Tensor, ...] | None


class BertEncoder(nn.Module):
    """The layers, one after the other."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.layer = nn.ModuleList(BertLayer(config, i) for i in range(config.num_hidden_layers))
        #: Set by `prepare_for_inference`: packed layers to run in place of `layer`.
        self.prepared: Any = None

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Any = None,
        past_key_values: Cache | None = None,
        packing: Packing | None = None,
        head_mask: Tensor | None = None,
        output_hidden_states: bool | int | Sequence[int] = False,
        output_attentions: bool = False,
        prepared: Any = None,
        **kwargs: Any,
    ) -> EncoderStates:
        """Runs every layer and collects what is asked for.

        Args:
            hidden_states: (..., D) embeddings.
            head_mask: (layers, H) factors, or None.
            output_hidden_states: True for all; numbers (0 the embeddings, -1 the last layer) keep
                those and leave None for the others.
            output_attentions: Whether to collect the probabilities.
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
            # What the caller holds must lie on the way of the gradient (`retain_grad`).
            return packing.refill(padded, hidden_states)

        hidden_states = keep(hidden_states)
        for index, layer in enumerate(self.layer):
            kept = packing.kept if packing is not None and layer is self.layer[-1] else None
            if prepared is not None:
                hidden_states = keep(prepared.layers[index](hidden_states, packing, kept))
                continue
            # Positional where gradients flow: reentrant checkpointing sees positional inputs only.
            output = layer(
                hidden_states,
                attention_mask,
                encoder_hidden_states,
                encoder_attention_mask=encoder_attention_mask,
                past_key_values=past_key_values,
                packing=packing,
                head_mask=None if head_mask is None else head_mask[index],
                output_attentions=output_attentions,
                kept=kept,
                **kwargs,
            )
            if output_attentions:
                output, probabilities, cross_probabilities = output
                attentions.append(probabilities)
                if cross_probabilities is not None:
                    cross_attentions.append(cross_probabilities)
            hidden_states = keep(output)

        return EncoderStates(
            hidden_states,
            None if wanted is None else tuple(states),
            tuple(attentions) if output_attentions else None,
            tuple(cross_attentions) if cross_attentions else None,
        )


def _wanted_states(selection: bool | int | Sequence[int], count: int) -> set[int] | None:
    """Numbers of the hidden states to keep; None if none are asked for."""
    if isinstance(selection, bool):
        return set(range(count)) if selection else None
    numbers = [selection] if isinstance(selection, int) else list(selection)
    return {number % count for number in numbers if -count <= number < count}
