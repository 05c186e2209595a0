"""One model of tokens, trained as a GPT or as a BERT: its input, and what it may attend to.

The causal model predicts each token from those before it (Radford et al., 2018, section 3.1), the
masked one hidden tokens from both sides (Devlin et al., 2019, section 3.1, task 1).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .attention import causal_mask, padding_mask
from .training import token_loss
from .transformer import TokenModel
from .vocabulary import BEGIN, PAD, UNKNOWN, pad, shift_right

#: From tokens (B, S): the input (B, S), the attention mask, and the targets (B, S).
Task = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


def next_token(tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A GPT: read the tokens before, see no later ones, predict the next."""
    return shift_right(tokens), causal_mask(tokens.shape[1]), tokens


def hidden_tokens(tokens: Tensor, share: float = 0.15) -> tuple[Tensor, Tensor, Tensor]:
    """A BERT: some tokens are hidden (by `UNKNOWN`), look to both sides, predict those.

    The original also leaves some hidden tokens as they are and exchanges others; notebook 4 does.
    """
    hidden = (torch.rand(tokens.shape) < share) & (tokens != PAD)
    # At least one in each sentence, because a short sentence would teach nothing otherwise.
    hidden[torch.arange(len(tokens)), (torch.rand(tokens.shape) * (tokens != PAD)).argmax(1)] = True
    shown = tokens.masked_fill(hidden, UNKNOWN)
    return shown, padding_mask(shown), tokens.masked_fill(~hidden, PAD)


def train_token_model(
    model: TokenModel,
    rows: Sequence[Sequence[int]],
    task: Task,
    *,
    epochs: int,
    batch_size: int = 32,
    learning_rate: float = 2e-3,
) -> list[float]:
    """Trains with Adam.

    Args:
        model: What is trained.
        rows: Sentences in numbers.
        task: `next_token` or `hidden_tokens`.
        epochs: How often each sentence is seen.
        batch_size: Sentences a step.
        learning_rate: The first rate of Adam; it falls linearly to 0.

    Returns:
        The loss of each step, in nats a predicted token.
    """
    rng = random.Random(0)
    steps = epochs * -(-len(rows) // batch_size)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    losses = []
    model.train()
    for _ in range(epochs):
        order = rng.sample(range(len(rows)), len(rows))
        for start in range(0, len(order), batch_size):
            inputs, mask, targets = task(pad([rows[n] for n in order[start : start + batch_size]]))
            loss = token_loss(model(inputs, mask), targets)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
    model.eval()
    return losses


@torch.no_grad()
def loss_of(model: TokenModel, rows: Sequence[Sequence[int]], task: Task) -> float:
    """The loss on sentences that were not trained on, in nats per predicted token."""
    inputs, mask, targets = task(pad(rows))
    return token_loss(model(inputs, mask), targets).item()


def unigram_loss(train: Sequence[Sequence[int]], test: Sequence[Sequence[int]]) -> float:
    """The loss of guessing by frequency alone, in nats per token; each count is raised by one.

    Args:
        train: Sentences in numbers, to count in.
        test: Sentences in numbers.

    Returns:
        The cross-entropy.
    """
    counts = Counter(token for row in train for token in row)
    kinds = {token for row in [*train, *test] for token in row}
    total = sum(counts.values()) + len(kinds)
    tokens = [token for row in test for token in row]
    return -sum(math.log((counts[token] + 1) / total) for token in tokens) / len(tokens)


@torch.no_grad()
def sample(
    model: TokenModel,
    beginning: Sequence[int],
    *,
    count: int,
    longest: int = 16,
    temperature: float = 1.0,
    best: int | None = None,
) -> Tensor:
    """Continues a text by drawing from the model's probabilities, one token at a time.

    Args:
        model: A causal one, in eval mode.
        beginning: Numbers of the tokens to begin with; may be empty.
        count: How many texts to write, N.
        longest: Tokens that are drawn.
        temperature: Divides the logits: below 1 the likely becomes likelier.
        best: Draw from that many likeliest tokens only (top-k: Fan et al., 2018, section 5.4).

    Returns:
        (N, longest) of numbers, the beginning not among them.
    """
    tokens = torch.tensor([[BEGIN, *beginning]]).repeat(count, 1)  # (N, 1 + beginning)
    for _ in range(longest):
        logits = model(tokens, causal_mask(tokens.shape[1]))[:, -1] / temperature  # (N, V)
        logits[:, [PAD, BEGIN]] = -torch.inf
        if best is not None:
            least = logits.topk(best).values[:, -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        drawn = torch.multinomial(logits.softmax(dim=-1), 1)  # (N, 1)
        tokens = torch.cat([tokens, drawn], dim=1)
    return tokens[:, 1 + len(beginning) :]
