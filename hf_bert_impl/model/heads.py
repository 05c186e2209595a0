"""What stands on the encoder: pooler, masked-LM and next-sentence heads.

Notation: B batch, S sequence, D hidden size, V vocabulary. The parameter names are the published
checkpoints' (`cls.predictions.transform.dense.weight`, …).
"""

from typing import Any

import torch
from torch import Tensor, nn

from .configuration_bert import BertConfig
from .cpu_kernels import choose
from .encoder import activation
from .linear import linear
from .prepared import LINEAR, Prepared, Stock, current
from .products import NOT_FUSED, fused


class BertPooler(nn.Module):
    """tanh(W·h + b) of the first token, the [CLS]; in a codertimo model h itself."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense: nn.Module = nn.Identity()
        self.activation: nn.Module = nn.Identity()
        if config.variant != "codertimo":
            self.dense = nn.Linear(config.hidden_size, config.hidden_size)
            self.activation = nn.Tanh()

    def forward(self, hidden_states: Tensor) -> Tensor:
        """(B, S, D) to (B, D)."""
        return linear(self.dense, hidden_states[:, 0], self.activation)


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


class BertLMPredictionHead(nn.Module):
    """Scores over the vocabulary: (..., D) to (..., V)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.transform = BertPredictionHeadTransform(config)
        # Tied to the word embeddings, unless the config says otherwise.
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        # The name that checkpoints have for `decoder.bias`; tied to it.
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        #: Set by `prepare_for_inference`: packed weights to use in place of these.
        self.prepared: Any = None

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Logits before the softmax."""
        prepared = current(self, hidden_states.numel() // hidden_states.shape[-1])
        if prepared is not None:
            return prepared(hidden_states)
        return linear(self.decoder, self.transform(hidden_states))


STOCK_HEAD = Stock(
    {
        "": (BertLMPredictionHead,),
        "transform": (BertPredictionHeadTransform,),
        "transform.dense": LINEAR,
        "transform.transform_act_fn": None,
        "transform.LayerNorm": None,
        "decoder": LINEAR,
    }
)


class PreparedLMHead(Prepared):
    """The masked-LM head, in floats: its product with the vocabulary is the model's largest."""

    def __init__(self, head: BertLMPredictionHead) -> None:
        self.transform = head.transform
        super().__init__(head, (self.transform.dense, head.decoder), STOCK_HEAD)
        with torch.no_grad():
            dense: Any = self.transform.dense
            kernels = choose(dense.weight.dtype)
            self.dense, self.decoder = kernels.pack(dense), kernels.pack(head.decoder)

    def __call__(self, states: Tensor) -> Tensor:
        """(..., D) to (..., V)."""
        shape = states.shape[:-1]
        activation = self.transform.transform_act_fn
        states = self.dense(states.flatten(0, -2), activation=fused(activation))
        if fused(activation) is NOT_FUSED:
            states = activation(states)
        scores = self.decoder(self.transform.LayerNorm(states))
        # Not a view, into which nobody could write with gradients on.
        return torch.ops.aten._unsafe_view(scores, (*shape, scores.shape[-1]))


class CodertimoLMPredictionHead(nn.Module):
    """codertimo's scores over the vocabulary, by a linear layer alone: (..., D) to (..., V)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)  # never tied

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Logits before the softmax."""
        return linear(self.decoder, hidden_states)


def prediction_head(config: BertConfig) -> BertLMPredictionHead | CodertimoLMPredictionHead:
    """The masked-LM head of the config's variant."""
    if config.variant == "codertimo":
        return CodertimoLMPredictionHead(config)
    return BertLMPredictionHead(config)


class BertOnlyMLMHead(nn.Module):
    """The masked-LM head alone."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.predictions = prediction_head(config)

    def forward(self, sequence_output: Tensor) -> Tensor:
        """(..., D) to (..., V)."""
        return self.predictions(sequence_output)


class BertOnlyNSPHead(nn.Module):
    """The next-sentence head alone."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.seq_relationship = nn.Linear(config.hidden_size, 2)

    def forward(self, pooled_output: Tensor) -> Tensor:
        """(B, D) to (B, 2): is the next sentence, is not (codertimo: is not, is)."""
        return self.seq_relationship(pooled_output)


class BertPreTrainingHeads(nn.Module):
    """Both pre-training heads."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.predictions = prediction_head(config)
        self.seq_relationship = nn.Linear(config.hidden_size, 2)

    def forward(self, sequence_output: Tensor, pooled_output: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, D) and (B, D) to (B, S, V) and (B, 2)."""
        return self.predictions(sequence_output), self.seq_relationship(pooled_output)
