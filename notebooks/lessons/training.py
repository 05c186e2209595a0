"""The loop that trains the translators: teacher forcing, cross-entropy, clipped gradients."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from .bleu import corpus_bleu
from .search import Decoder, beam_search, greedy
from .translation_data import Pair, TranslationData, batches, references
from .vocabulary import PAD, pad, shift_right


@dataclass
class History:
    """The record of a training run."""

    #: Loss of each step, in nats per token.
    losses: list[float] = field(default_factory=list)
    #: Duration in seconds.
    seconds: float = 0.0

    def smoothed(self, steps: int = 25) -> list[float]:
        """The mean loss of the last `steps` steps at each step."""
        window = [self.losses[max(0, end - steps) : end] for end in range(1, len(self.losses) + 1)]
        return [sum(part) / len(part) for part in window]


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of the tokens that are not padding.

    Args:
        logits: (B, T, V).
        targets: (B, T).

    Returns:
        A number, in nats per token.
    """
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)


def train(
    model: nn.Module,
    data: TranslationData,
    *,
    epochs: int,
    batch_size: int = 64,
    learning_rate: float = 5e-3,
    loss: Callable[[Tensor, Tensor], Tensor] = token_loss,
    schedule: Callable[[int], float] | None = None,
) -> History:
    """Trains a translator with Adam.

    Args:
        model: Takes tokens to read (B, S) and the correct tokens, one place to the right (B, T).
            Returns logits (B, T, V) first.
        data: The pairs.
        epochs: Number of epochs.
        batch_size: Pairs per step.
        learning_rate: The rate of Adam where the schedule gives 1.
        loss: From logits (B, T, V) and targets (B, T).
        schedule: Factor of the learning rate by step, from 1; by default it falls linearly to 0.

    Returns:
        The losses and the time.
    """
    rng, history, began = random.Random(0), History(), time.perf_counter()
    steps = epochs * -(-len(data.train) // batch_size)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), eps=1e-9)
    factor = schedule or (lambda step: 1 - (step - 1) / steps)
    planned = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: factor(done + 1))
    model.train()
    for _ in range(epochs):
        for source, target in batches(data.train, data.source, data.target, batch_size, rng):
            logits = model(source, shift_right(target))[0]
            step_loss = loss(logits, target)
            optimizer.zero_grad()
            step_loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            planned.step()
            history.losses.append(step_loss.item())
    model.eval()
    history.seconds = time.perf_counter() - began
    return history


def translate(
    model: Decoder, data: TranslationData, pairs: list[Pair], *, beams: int = 1, alpha: float = 0.6
) -> list[list[str]]:
    """Translations of the pairs' sources, in their order.

    Args:
        model: In eval mode.
        data: The source of the vocabularies.
        pairs: The pairs to translate; targets are ignored.
        beams: 1 searches greedily.
        alpha: The length penalty of the beam search.

    Returns:
        Tokenised sentences.
    """
    longest = 2 * max(len(pair.target) for pair in data.train)
    written: list[list[str]] = []
    for start in range(0, len(pairs), 100):
        group = pairs[start : start + 100]
        source = pad([data.source.encode(pair.source) for pair in group])  # (B, S)
        if beams == 1:
            rows = greedy(model, source, longest)
        else:
            rows, _ = beam_search(model, source, longest, beams=beams, alpha=alpha)
        written += [data.target.decode(row) for row in rows.tolist()]
    return written


def bleu_of_test(model: Decoder, data: TranslationData, *, beams: int = 1) -> float:
    """BLEU of the test. Every known translation of a sentence is a reference.

    Args:
        model: In eval mode.
        data: The pairs.
        beams: 1 searches greedily.

    Returns:
        0 to 100.
    """
    known = references(data.test, data.test)
    return corpus_bleu(translate(model, data, data.test, beams=beams), known)


@torch.no_grad()
def loss_of_test(model: nn.Module, data: TranslationData) -> float:
    """Cross-entropy of the test's correct translations under teacher forcing, in nats per token.

    Args:
        model: In eval mode.
        data: The pairs.

    Returns:
        The mean over all tokens, including `END`.
    """
    total, count = 0.0, 0
    for source, target in batches(data.test, data.source, data.target, 100):
        tokens = int((target != PAD).sum())
        total += token_loss(model(source, shift_right(target))[0], target).item() * tokens
        count += tokens
    return total / count
