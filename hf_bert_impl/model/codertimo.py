"""The architecture of https://github.com/codertimo/BERT-pytorch, a variant of ours.

Its layers normalise their input, not their output, with its own LayerNorm. Token types begin
at 1. If no mask is given, all tokens are attended but those with the id of padding. There is no
pooler, and the masked-LM head is one linear layer. `architecture` names the classes of a
model. The variant appears only here and in the config.

Notation: B batch, S sequence, D hidden size, V vocabulary; `(..., D)` is `(B, S, D)` or, packed,
`(T, D)` (see `layout.py`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.cache_utils import Cache

from .configuration_bert import BertConfig
from .layers import (
    BertAttention,
    BertEmbeddings,
    BertLayer,
    BertLMPredictionHead,
    BertOutput,
    BertPooler,
)
from .linear import linear


class CodertimoEmbeddings(BertEmbeddings):
    """Without LayerNorm; token type 0 is that of padding."""

    first_type = 1

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.LayerNorm = nn.Identity()
        self.token_type_embeddings.padding_idx = 0


class DeviationLayerNorm(nn.LayerNorm):
    """codertimo's LayerNorm: w · (x − mean) / (s + eps) + b, s the unbiased standard deviation.

    Its checkpoints call w and b `a_2` and `b_2` (`bert_pytorch/model/utils/layer_norm.py`).
    """

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(..., D) to (..., D), computed in float32 or more."""
        dtype = hidden_states.dtype
        precise = hidden_states.to(torch.promote_types(dtype, torch.float32))
        deviation, mean = torch.std_mean(precise, dim=-1, keepdim=True)  # (..., 1)
        normed = (precise - mean) / (deviation + self.eps)
        return (self.weight * normed + self.bias).to(dtype)

    takes_packed = (forward,)


class PreNormAttention(BertAttention):
    """codertimo's attention sub-layer: normalise, attend, project, add."""

    def __init__(
        self, config: BertConfig, is_causal: bool = False, layer_idx: int | None = None
    ) -> None:
        super().__init__(config, is_causal, layer_idx)
        self.output.LayerNorm = DeviationLayerNorm(config.hidden_size, eps=config.layer_norm_eps)

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
        """As `BertAttention.forward`."""
        output, cache = self.output, kwargs.pop("past_key_values", cache)
        context, probabilities = self.self(
            output.LayerNorm(hidden_states), attention_mask, cache, **kwargs
        )
        if outputs is not None:
            context, hidden_states = context[outputs], hidden_states[outputs]
        return hidden_states + output.dropout(linear(output.dense, context)), probabilities

    takes_packed = (forward,)


class PreNormOutput(BertOutput):
    """Second half of codertimo's feed-forward sub-layer, with three dropouts.

    One drops activations, one drops what is added, and one drops the whole layer's output.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        #: It normalises the sub-layer's input, so `CodertimoLayer` calls it.
        self.LayerNorm = DeviationLayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        """Projects back and adds."""
        projected = linear(self.dense, self.dropout(hidden_states))
        return self.dropout(input_tensor + self.dropout(projected))

    takes_packed = (forward,)


class CodertimoLayer(BertLayer):
    """A layer whose sub-layers normalise their input."""

    attention_class = PreNormAttention
    output_class = PreNormOutput

    def feed_forward_chunk(self, attention_output: Tensor, is_bare: bool = False) -> Tensor:
        """(..., D) to (..., D)."""
        normed = self.output.LayerNorm(attention_output)
        return self.output(self.intermediate(normed), attention_output)

    takes_packed = (BertLayer.forward, feed_forward_chunk)


class CodertimoPooler(nn.Module):
    """The state of the first token as it is."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()

    def forward(self, first_token: Tensor) -> Tensor:
        """(B, 1, D), or (B, S, D) of a call with padding, to (B, D); see `BertPooler`."""
        return first_token[:, 0]

    takes_packed = (forward,)


class CodertimoLMPredictionHead(nn.Module):
    """codertimo's scores over the vocabulary, by a linear layer alone: (..., D) to (..., V)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)  # never tied

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Logits before the softmax."""
        return linear(self.decoder, hidden_states)

    takes_packed = (forward,)


def init_weights(module: nn.Module) -> bool:
    """Random weights as the original's code has them, which are torch's own.

    No LayerNorm follows the embeddings: of BERT's width, 0.02, they would be negligible compared
    with the sinusoids. False for a module of another kind, which BERT's own rules initialise.
    """
    if isinstance(module, nn.Embedding):
        init.normal_(module.weight)
        if module.padding_idx is not None and not getattr(
            module.weight, "_is_hf_initialized", False
        ):
            init.zeros_(module.weight[module.padding_idx])
    elif isinstance(module, nn.Linear):
        bound = module.in_features**-0.5
        init.uniform_(module.weight, -bound, bound)
        if module.bias is not None:
            init.uniform_(module.bias, -bound, bound)
    return isinstance(module, nn.Embedding | nn.Linear)


class Architecture(NamedTuple):
    """The classes of a model's parts, as its config decides."""

    embeddings: type[BertEmbeddings]
    layer: type[BertLayer]
    pooler: type[nn.Module]
    prediction_head: type[nn.Module]
    init_weights: Callable[[nn.Module], bool] | None = None
    """Initialises weights instead of `initializer_range`; False for modules it leaves."""


def architecture(config: BertConfig) -> Architecture:
    """The classes of `config.variant`."""
    if config.variant == "codertimo":
        return Architecture(
            CodertimoEmbeddings,
            CodertimoLayer,
            CodertimoPooler,
            CodertimoLMPredictionHead,
            init_weights,
        )
    return Architecture(BertEmbeddings, BertLayer, BertPooler, BertLMPredictionHead)
