"""Padded batches of known lengths, and their operation counts.

Lengths come from Python's own `random.Random(seed)`, so a batch is the same on every machine and
with every version of torch.

Notation: B batch, S sequence, D hidden size, F intermediate size, V vocabulary, L length.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

#: Lengths of sentences are log-normal: mean and spread of their logarithm.
LOG_MEAN, LOG_SPREAD = 3.9, 0.7
FIRST_ID = 5
#: Texts per padded batch.
TEXT_ROWS = 32


@dataclasses.dataclass(frozen=True)
class Case:
    """The lengths of one padded batch."""

    name: str
    lengths: tuple[int, ...]
    """Real tokens of each row."""
    width: int
    """Columns of the padded batch, at least the longest row; 0 for texts in many batches."""
    one_by_one: bool = False
    """Whether each row is a batch of its own."""

    @property
    def rows(self) -> int:
        """Sequences in the batch."""
        return len(self.lengths)

    @property
    def tokens(self) -> int:
        """Real tokens in the batch."""
        return sum(self.lengths)

    @property
    def padding(self) -> float:
        """The share of padding, 0 to 1; for texts in batches of `TEXT_ROWS`."""
        if self.one_by_one:
            return 0.0
        if self.width:
            return 1 - self.tokens / (self.rows * self.width)
        starts = range(0, self.rows, TEXT_ROWS)
        batches = [self.lengths[start : start + TEXT_ROWS] for start in starts]
        return 1 - self.tokens / sum(len(batch) * max(batch) for batch in batches)


def log_normal_lengths(
    rows: int,
    mean: float = LOG_MEAN,
    spread: float = LOG_SPREAD,
    shortest: int = 4,
    longest: int = 128,
) -> list[int]:
    """`rows` times round(exp(normal(mean, spread))), clipped to shortest..longest tokens."""
    draw = random.Random(0)
    drawn = (round(draw.lognormvariate(mean, spread)) for _ in range(rows))
    return [min(longest, max(shortest, length)) for length in drawn]


def scale_lengths(lengths: list[int], positions: int) -> list[int]:
    """Lengths in the same proportions, at most `positions` tokens each."""
    longest = max(lengths)
    if longest <= positions:
        return lengths
    return [max(1, length * positions // longest) for length in lengths]


def make_batch(case: Case, vocab_size: int, device: str = "cpu") -> dict[str, Tensor]:
    """Random ids and the mask of a case: `input_ids` and `attention_mask`, (B, S) each."""
    import torch

    generator = torch.Generator().manual_seed(len(case.lengths))
    lengths = torch.tensor(case.lengths)
    mask = (torch.arange(case.width) < lengths[:, None]).long()  # (B, S)
    longest = max(case.lengths)
    ids = torch.zeros_like(mask)
    # A wider batch has the same tokens, for comparison.
    ids[:, :longest] = torch.randint(
        min(FIRST_ID, vocab_size - 1), vocab_size, (case.rows, longest), generator=generator
    )
    return {"input_ids": (ids * mask).to(device), "attention_mask": mask.to(device)}


def forward_flops(
    config: Any, lengths: Sequence[int], *, pooler: bool = True, scored: int = 0
) -> int:
    """Floating-point operations of an encoder on real tokens only.

    A multiply-add counts as two. For a sequence of L tokens each layer takes

    - 8 L D² for queries, keys, values and output
    - 4 L D F for the feed-forward part
    - 4 L² D for scores and the weighted sum of values

    A pooler takes 2 D² per sequence, the masked-LM head 2 D² + 2 D V per scored token. Embeddings,
    LayerNorm, softmax and GELU do not count, as in torch's FLOP counter.

    Args:
        config: Sizes of the model.
        lengths: Real tokens of each sequence.
        pooler: Whether the model has one.
        scored: Tokens that the masked-LM head scores.

    Returns:
        Operations.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    tokens, squares = sum(lengths), sum(length * length for length in lengths)
    layer = tokens * (8 * hidden**2 + 4 * hidden * inner) + 4 * squares * hidden
    head = scored * (2 * hidden**2 + 2 * hidden * config.vocab_size)
    return config.num_hidden_layers * layer + head + pooler * 2 * len(lengths) * hidden**2
