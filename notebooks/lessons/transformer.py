"""The Transformer: blocks of attention and feed-forward layers, stacked, in every combination.

Vaswani et al. (2017): blocks in section 3.1, feed-forward in 3.3, embeddings and the shared output
matrix in 3.4. `norm_first=True` places the norm as in Xiong et al. (2020, figure 1b), `False` as in
the first paper.

Notation: B batch, S tokens read, T tokens written, E size of the model, F of the feed-forward
layer, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .attention import MultiHeadAttention, causal_mask, padding_mask
from .positions import sinusoids
from .vocabulary import PAD

LONGEST = 256


@dataclass(frozen=True)
class Sizes:
    """The sizes of a Transformer, and the place of its norms."""

    #: E.
    size: int = 128
    #: Heads of each attention.
    heads: int = 4
    #: F.
    hidden: int = 512
    #: Blocks of a stack.
    blocks: int = 2
    #: True normalises a layer's input (pre-norm), False the sum after it (post-norm).
    norm_first: bool = True
    #: Dropout of each layer's output, and of the embeddings.
    dropout: float = 0.1


class Residual(nn.Module):
    """x + layer(norm(x)), or norm(x + layer(x)), around every layer of a block."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(sizes.size)
        self.dropout = nn.Dropout(sizes.dropout)
        self.norm_first = sizes.norm_first

    def enter(self, states: Tensor) -> Tensor:
        """The input of the layer."""
        return self.norm(states) if self.norm_first else states

    def leave(self, states: Tensor, added: Tensor) -> Tensor:
        """The sum of the layer's input and its output."""
        total = states + self.dropout(added)
        return total if self.norm_first else self.norm(total)


class Block(nn.Module):
    """Self-attention, cross-attention if asked for, feed-forward.

    Args:
        sizes: The sizes of the model.
        cross: True in the decoder of a translator, which also attends to the encoder.
    """

    def __init__(self, sizes: Sizes, *, cross: bool = False) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(sizes.size, sizes.heads)
        self.around_attention = Residual(sizes)
        self.cross = MultiHeadAttention(sizes.size, sizes.heads) if cross else None
        self.around_cross = Residual(sizes) if cross else None
        self.feed_forward = nn.Sequential(
            nn.Linear(sizes.size, sizes.hidden), nn.ReLU(), nn.Linear(sizes.hidden, sizes.size)
        )
        self.around_feed_forward = Residual(sizes)

    def forward(
        self,
        states: Tensor,
        mask: Tensor | None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """One block.

        Args:
            states: (B, T, E).
            mask: Where self-attention may look, as `MultiHeadAttention` takes it.
            memory: (B, S, E), what was read; only with `cross`.
            memory_mask: (B, 1, S), its tokens that are not padding.

        Returns:
            (B, T, E).
        """
        entered = self.around_attention.enter(states)
        states = self.around_attention.leave(states, self.attention(entered, entered, mask))
        if self.cross is not None and self.around_cross is not None:
            if memory is None:
                raise ValueError("a block with cross-attention needs the memory")
            entered = self.around_cross.enter(states)
            states = self.around_cross.leave(states, self.cross(entered, memory, memory_mask))
        entered = self.around_feed_forward.enter(states)
        return self.around_feed_forward.leave(states, self.feed_forward(entered))


class Stack(nn.Module):
    """Blocks on top of each other. Pre-norm needs one more norm, since the last sum has none."""

    def __init__(self, sizes: Sizes, *, cross: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(sizes, cross=cross) for _ in range(sizes.blocks))
        self.norm = nn.LayerNorm(sizes.size) if sizes.norm_first else nn.Identity()

    def forward(
        self,
        states: Tensor,
        mask: Tensor | None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """All blocks, with arguments and result as in `Block`."""
        for block in self.blocks:
            states = block(states, mask, memory, memory_mask)
        return self.norm(states)


class Embedding(nn.Module):
    """Token vectors times √E plus sinusoidal positions; its matrix also scores the vocabulary."""

    positions: Tensor

    def __init__(self, vocabulary: int, sizes: Sizes) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, sizes.size, padding_idx=PAD)
        # Times √E the vectors then have about the variance of the positions, 1.
        nn.init.normal_(self.tokens.weight, std=sizes.size**-0.5)
        self.register_buffer("positions", sinusoids(LONGEST, sizes.size), persistent=False)
        self.dropout = nn.Dropout(sizes.dropout)
        self.scale = math.sqrt(sizes.size)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, S) → (B, S, E)."""
        return self.dropout(self.tokens(tokens) * self.scale + self.positions[: tokens.shape[1]])

    def scores(self, states: Tensor) -> Tensor:
        """(B, T, E) → logits (B, T, V)."""
        return states @ self.tokens.weight.T


class State(NamedTuple):
    """A translator's state between two tokens."""

    #: (B, t), the written tokens; empty before the first.
    written: Tensor
    #: (B, S, E), the encoder's states.
    memory: Tensor
    #: (B, 1, S).
    memory_mask: Tensor


class Transformer(nn.Module):
    """Encoder and decoder: reads a sentence and writes another.

    Args:
        source_vocabulary: Tokens that can be read.
        target_vocabulary: V, tokens that can be written.
        sizes: The sizes of both stacks.
    """

    def __init__(self, source_vocabulary: int, target_vocabulary: int, sizes: Sizes) -> None:
        super().__init__()
        self.source = Embedding(source_vocabulary, sizes)
        self.target = Embedding(target_vocabulary, sizes)
        self.encoder = Stack(sizes)
        self.decoder = Stack(sizes, cross=True)

    def forward(self, source: Tensor, forced: Tensor) -> tuple[Tensor]:
        """Teacher forcing at all places together: the mask hides later tokens.

        Args:
            source: (B, S).
            forced: (B, T), the correct tokens, one place to the right.

        Returns:
            A tuple with the logits (B, T, V).
        """
        mask = padding_mask(source)  # (B, 1, S)
        memory = self.encoder(self.source(source), mask)  # (B, S, E)
        future = causal_mask(forced.shape[1])  # (T, T)
        states = self.decoder(self.target(forced), future, memory, mask)  # (B, T, E)
        return (self.target.scores(states),)

    def start(self, source: Tensor) -> State:
        """The state of a search before its first token; `lessons.search` calls it."""
        mask = padding_mask(source)
        return State(source[:, :0], self.encoder(self.source(source), mask), mask)

    def next(self, state: State, tokens: Tensor) -> tuple[Tensor, State]:
        """Log-probabilities of the next token; `lessons.search` calls it.

        Each step computes all written tokens again. Real systems cache keys and values.

        Args:
            state: The state before it.
            tokens: (B,), the tokens written last.

        Returns:
            (B, V), and the state after it.
        """
        state = state._replace(written=torch.cat([state.written, tokens.unsqueeze(1)], dim=1))
        mask = causal_mask(state.written.shape[1])
        states = self.decoder(
            self.target(state.written), mask, state.memory, state.memory_mask
        )  # (B, t, E)
        return self.target.scores(states[:, -1]).log_softmax(dim=-1), state

    def select(self, state: State, rows: Tensor) -> State:
        """The state of the given rows, which may repeat."""
        return State(*(part[rows] for part in state))
