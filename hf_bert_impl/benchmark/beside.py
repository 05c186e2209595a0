"""How fast a model is beside something that computes the same: for a card, or an exported file."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hf_bert_impl.benchmark import cases, timing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Cases of `cases.CASES` and their rows: a padded batch, and one sentence.
MEASURED = {"short": 8, "sentence": 1}
ROUNDS = 5


@dataclasses.dataclass(frozen=True)
class Timed:
    """A model and another runner on one batch."""

    case: str
    rows: int
    tokens: int
    """Real tokens in the batch."""
    padding: float
    """The share of the batch that is padding, 0 to 1."""
    model_ms: float
    """Median milliseconds of the model."""
    other_ms: float
    """Median milliseconds of the other runner."""
    ratio: float
    """How many times as long the other one takes: the median over rounds."""
    least: float
    """The least of the rounds: far from the median where something else ran meanwhile."""
    greatest: float
    """The greatest of the rounds."""


def time_beside(
    model: PreTrainedModel, other: Callable[..., Any], rounds: int = ROUNDS
) -> list[Timed]:
    """Time a model and something that computes the same, in turns, on the CPU.

    Args:
        model: In eval mode.
        other: Takes a batch: `input_ids`, `attention_mask` and `token_type_ids`, (B, S) each.
        rounds: Pairs of runs.

    Returns:
        A row for each of `MEASURED`. A multiple-choice model gets each batch as one question.
    """
    import torch

    config = model.config
    found = []
    for name, rows in MEASURED.items():
        case = cases.make_case(name, rows, config.max_position_embeddings)
        batch = cases.make_batch(case, config.vocab_size)
        batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])
        if type(model).__name__ == "BertForMultipleChoice":
            batch = {key: value[None] for key, value in batch.items()}

        def ours(batch: dict[str, Any] = batch) -> Any:
            with torch.inference_mode():
                return model(**batch)

        def theirs(batch: dict[str, Any] = batch) -> Any:
            with torch.inference_mode():
                return other(batch)

        mine, others = timing.in_turns((ours, theirs), rounds)
        ratios = [their / my for my, their in zip(mine, others, strict=True)]
        found.append(
            Timed(
                name,
                case.rows,
                case.tokens,
                case.padding,
                1000 * statistics.median(mine),
                1000 * statistics.median(others),
                statistics.median(ratios),
                min(ratios),
                max(ratios),
            )
        )
    return found
