"""Encoder and decoder of gated recurrent units, with and without Bahdanau's attention.

Bahdanau et al. (2015): the encoder of section 3.2 reads the sentence in both directions, the
decoder of section 3.1 writes one word per step. With `attention=False`, the whole sentence must
pass through one vector of fixed size (Cho et al., 2014, section 2.2).

Notation: B batch, S tokens read, T tokens written, E embedding, R recurrent size, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .attention import AdditiveScores, padding_mask, soft_address
from .vocabulary import PAD


class Memory(NamedTuple):
    """A sentence that was read."""

    #: (B, S, 2R), one vector per token: the decoder's keys and values.
    annotations: Tensor
    #: (B, S, A), the keys as the additive score needs them.
    projected: Tensor
    #: (B, 1, S) of bool, True at tokens.
    mask: Tensor
    #: (B, 2R), the one vector of the decoder without attention.
    summary: Tensor


class State(NamedTuple):
    """The decoder's state between two tokens."""

    #: (B, R).
    hidden: Tensor
    memory: Memory


class Encoder(nn.Module):
    """A bidirectional GRU: the annotation of a token describes the words on both sides."""

    def __init__(self, vocabulary: int, embedding: int, size: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, embedding, padding_idx=PAD)
        self.read = nn.GRU(embedding, size, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Reads.

        Args:
            tokens: (B, S), padding at the end.

        Returns:
            Annotations (B, S, 2R), and the last state of each direction, joined: (B, 2R).
        """
        lengths = (tokens != PAD).sum(dim=1)
        embedded = self.dropout(self.embed(tokens))  # (B, S, E)
        # Packed, because the backward direction would otherwise start in the padding.
        packed = nn.utils.rnn.pack_padded_sequence(
            embedded, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        states, last = self.read(packed)  # last: (2, B, R)
        annotations, _ = nn.utils.rnn.pad_packed_sequence(
            states, batch_first=True, total_length=tokens.shape[1]
        )
        return annotations, last.transpose(0, 1).flatten(1)


class RecurrentTranslator(nn.Module):
    """Reads a sentence and writes another.

    Args:
        source_vocabulary: Tokens that can be read.
        target_vocabulary: V, tokens that can be written.
        embedding: E.
        size: R.
        attention: False gives the decoder one vector of the sentence, the same at each step.
        dropout: The share of dropout in embeddings and in the states before the vocabulary.
    """

    def __init__(
        self,
        source_vocabulary: int,
        target_vocabulary: int,
        *,
        embedding: int = 128,
        size: int = 192,
        attention: bool = True,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.encoder = Encoder(source_vocabulary, embedding, size, dropout)
        self.embed = nn.Embedding(target_vocabulary, embedding, padding_idx=PAD)
        self.begin = nn.Linear(2 * size, size)
        self.score = AdditiveScores(size, 2 * size, size)
        self.step = nn.GRUCell(embedding + 2 * size, size)
        self.narrow = nn.Linear(size + 2 * size + embedding, embedding)
        self.to_vocabulary = nn.Linear(embedding, target_vocabulary)
        self.dropout = nn.Dropout(dropout)

    def read(self, source: Tensor) -> State:
        """Reads a batch of sentences.

        Args:
            source: (B, S).

        Returns:
            The decoder's state before its first token.
        """
        annotations, summary = self.encoder(source)
        memory = Memory(annotations, self.score.project(annotations), padding_mask(source), summary)
        return State(self.begin(summary).tanh(), memory)

    def attend(self, state: State) -> tuple[Tensor, Tensor]:
        """The decoder's input from the sentence at one step.

        Args:
            state: Its state, the query.

        Returns:
            The context (B, 2R), and the weights of the tokens (B, S).
        """
        memory = state.memory
        if not self.attention:
            weights = memory.mask.squeeze(1) / memory.mask.sum(dim=-1)
            return memory.summary, weights
        scores = self.score(state.hidden.unsqueeze(1), memory.projected)  # (B, 1, S)
        context, weights = soft_address(scores, memory.annotations, memory.mask)
        return context.squeeze(1), weights.squeeze(1)

    def advance(self, state: State, embedded: Tensor) -> tuple[Tensor, Tensor, State]:
        """One step of the decoder: attend, update, prepare a token.

        Args:
            state: Before the step.
            embedded: (B, E), the token written last.

        Returns:
            The features for the vocabulary's scores (B, 3R + E), the weights (B, S), the new state.
        """
        context, weights = self.attend(state)
        hidden = self.step(torch.cat([embedded, context], dim=-1), state.hidden)  # (B, R)
        features = torch.cat([hidden, context, embedded], dim=-1)
        return features, weights, State(hidden, state.memory)

    def forward(self, source: Tensor, forced: Tensor) -> tuple[Tensor, Tensor]:
        """Teacher forcing: each step reads the correct previous token, not its own.

        Args:
            source: (B, S).
            forced: (B, T), the right tokens, one place to the right.

        Returns:
            Logits (B, T, V) and the weights (B, T, S).
        """
        state = self.read(source)
        embedded = self.dropout(self.embed(forced))  # (B, T, E)
        steps, attention = [], []
        for place in range(forced.shape[1]):
            features, weights, state = self.advance(state, embedded[:, place])
            steps.append(features)
            attention.append(weights)
        return self._logits(torch.stack(steps, dim=1)), torch.stack(attention, dim=1)

    def start(self, source: Tensor) -> State:
        """The state of a search before its first token; `lessons.search` calls it."""
        return self.read(source)

    def next(self, state: State, tokens: Tensor) -> tuple[Tensor, State]:
        """Log-probabilities of the next token; `lessons.search` calls it.

        Args:
            state: The state before it.
            tokens: (B,), the tokens written last.

        Returns:
            (B, V), and the state after it.
        """
        features, _, state = self.advance(state, self.embed(tokens))
        return self._logits(features).log_softmax(dim=-1), state

    def select(self, state: State, rows: Tensor) -> State:
        """The state of the given rows, which may repeat."""
        return State(state.hidden[rows], Memory(*(part[rows] for part in state.memory)))

    def _logits(self, features: Tensor) -> Tensor:
        narrow = self.narrow(features).tanh()  # a narrow layer, because V is wide
        return self.to_vocabulary(self.dropout(narrow))
