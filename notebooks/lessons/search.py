"""The search for a sentence by a decoder's probabilities: greedy, or by beam search.

Beam search keeps the `beams` best beginnings at each step. Each further token lowers the
probability, so short sentences would win. The log-probability is therefore divided by the length
penalty ((5 + length) / 6)^alpha (Wu et al., 2016, section 7).
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from .vocabulary import BEGIN, END, PAD


class Decoder(Protocol):
    """A network that writes one token at a time."""

    def start(self, source: Tensor) -> Any:
        """The state before the first token of each of B sentences."""

    def next(self, state: Any, tokens: Tensor) -> tuple[Tensor, Any]:
        """Log-probabilities (B, V) of the next tokens after (B,), and the new state."""

    def select(self, state: Any, rows: Tensor) -> Any:
        """The state of the given rows."""


@torch.no_grad()
def greedy(model: Decoder, source: Tensor, longest: int) -> Tensor:
    """Writes the most likely token at each step.

    Args:
        model: The decoder, in eval mode.
        source: (B, S), the text to translate.
        longest: Maximum number of tokens per sentence.

    Returns:
        (B, T): tokens, `END`, then `PAD`.
    """
    state = model.start(source)
    tokens = source.new_full((len(source),), BEGIN)
    done = torch.zeros_like(tokens, dtype=torch.bool)
    written = []
    for _ in range(longest):
        scores, state = model.next(state, tokens)
        tokens = scores.argmax(dim=-1).masked_fill(done, PAD)
        written.append(tokens)
        done = done | (tokens == END)
        if done.all():
            break
    return torch.stack(written, dim=1)


def penalty(length: Tensor, alpha: float) -> Tensor:
    """The divisor of a log-probability, ((5 + length) / 6)^alpha."""
    return ((5 + length) / 6) ** alpha


@torch.no_grad()
def beam_search(
    model: Decoder, source: Tensor, longest: int, *, beams: int = 4, alpha: float = 0.6
) -> tuple[Tensor, Tensor]:
    """Keeps the best beginnings at each step and returns the best sentence.

    Args:
        model: The decoder, in eval mode.
        source: (B, S), the text to translate.
        longest: Maximum number of tokens per sentence.
        beams: K, the number of beginnings. 1 is greedy search.
        alpha: The strength of the length penalty; 0 compares plain log-probabilities.

    Returns:
        (B, T): tokens, `END`, then `PAD`; and the penalised scores, (B,).
    """
    batch = len(source)
    first = torch.arange(batch).repeat_interleave(beams)  # (B·K,)
    state = model.select(model.start(source), first)
    tokens = source.new_full((batch * beams,), BEGIN)
    written = source.new_full((batch, beams, longest), PAD)
    # At first only one beam of each sentence counts, because all beams are still the same.
    totals = torch.full((batch, beams), -torch.inf)
    totals[:, 0] = 0
    done = torch.zeros(batch, beams, dtype=torch.bool)
    lengths = torch.zeros(batch, beams)
    for place in range(longest):
        scores, state = model.next(state, tokens)
        scores = scores.view(batch, beams, -1)  # (B, K, V)
        # A finished sentence continues with padding at no cost.
        finished = torch.full_like(scores[0, 0], -torch.inf)
        finished[PAD] = 0
        scores = torch.where(done.unsqueeze(-1), finished, scores)
        sums = totals.unsqueeze(-1) + scores  # (B, K, V)
        ranked = sums / penalty(lengths + ~done, alpha).unsqueeze(-1)
        best = ranked.flatten(1).topk(beams).indices  # (B, K), numbers in K·V
        beam, token = best // scores.shape[-1], best % scores.shape[-1]
        totals = sums.flatten(1).gather(1, best)
        lengths = (lengths + ~done).gather(1, beam)
        done = done.gather(1, beam) | (token == END)
        written = written.gather(1, beam.unsqueeze(-1).expand_as(written)).clone()
        written[:, :, place] = token
        rows = (torch.arange(batch).unsqueeze(1) * beams + beam).flatten()  # (B·K,)
        state, tokens = model.select(state, rows), token.flatten()
        if done.all():
            break
    ranked = totals / penalty(lengths, alpha)
    score, winner = ranked.max(dim=1)
    return written[torch.arange(batch), winner, : place + 1], score
