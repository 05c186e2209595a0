"""A sentiment classifier of nothing but self-attention, whose attention can be looked at.

Embeddings and positions, H heads of self-attention, and a learned query that reads the sentence:
the sentence vector is one more soft address, and its weights say what was read (attention pooling
as in Lin et al., 2017, section 2).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .attention import MultiHeadAttention, padding_mask, soft_address
from .positions import sinusoids
from .vocabulary import PAD

LONGEST = 128


def small_embedding(vocabulary: int, size: int) -> nn.Embedding:
    """Word vectors that begin small, so that a few reviews soon outweigh the random start.

    Args:
        vocabulary: Words.
        size: E.

    Returns:
        The layer, with a deviation of 0.1 and zeros for padding.
    """
    embed = nn.Embedding(vocabulary, size, padding_idx=PAD)
    nn.init.normal_(embed.weight[1:], std=0.1)
    return embed


class SelfAttentionClassifier(nn.Module):
    """Turns words into one score per class.

    Args:
        vocabulary: Words.
        classes: C.
        size: E.
        heads: H.
        dropout: The share of dropout in the embeddings and in the sentence vector.
    """

    positions: Tensor

    def __init__(
        self, vocabulary: int, classes: int, *, size: int = 96, heads: int = 4, dropout: float = 0.5
    ) -> None:
        super().__init__()
        self.embed = small_embedding(vocabulary, size)
        self.register_buffer("positions", 0.1 * sinusoids(LONGEST, size), persistent=False)
        self.attention = MultiHeadAttention(size, heads)
        self.norm = nn.LayerNorm(size)
        self.reader = nn.Linear(size, 1, bias=False)  # the learned query
        self.dropout = nn.Dropout(dropout)
        self.classify = nn.Linear(size, classes)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Classifies.

        Args:
            tokens: (B, S), padding at the end.

        Returns:
            Logits (B, C), and how much of each word was read, (B, S), which sums to 1.
        """
        mask = padding_mask(tokens)  # (B, 1, S)
        states = self.dropout(self.embed(tokens) + self.positions[: tokens.shape[1]])  # (B, S, E)
        states = self.norm(states + self.attention(states, states, mask))
        scores = self.reader(states).transpose(1, 2)  # (B, 1, S)
        sentence, weights = soft_address(scores, states, mask)
        return self.classify(self.dropout(sentence.squeeze(1))), weights.squeeze(1)


class MeanClassifier(nn.Module):
    """The baseline that knows no order and no context: the mean of the word vectors.

    Args:
        vocabulary: Words.
        classes: C.
        size: E.
        dropout: The share of dropout in the embeddings and in the sentence vector.
    """

    def __init__(
        self, vocabulary: int, classes: int, *, size: int = 96, dropout: float = 0.5
    ) -> None:
        super().__init__()
        self.embed = small_embedding(vocabulary, size)
        self.dropout = nn.Dropout(dropout)
        self.classify = nn.Linear(size, classes)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Arguments and result are those of `SelfAttentionClassifier`."""
        real = (tokens != PAD).float()
        weights = real / real.sum(dim=1, keepdim=True)  # (B, S)
        sentence = torch.einsum("bs,bse->be", weights, self.dropout(self.embed(tokens)))
        return self.classify(self.dropout(sentence)), weights
