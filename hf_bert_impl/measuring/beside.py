"""Speed of a model compared with another runner, such as an exported file."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from hf_bert_impl.measuring.batches import Case, log_normal_lengths, make_batch, scale_lengths
from hf_bert_impl.measuring.timing import in_turns

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Lengths of the batches: one with padding, and one sentence.
MEASURED = {"short": log_normal_lengths(8), "sentence": [12]}


@dataclasses.dataclass(frozen=True)
class Timed:
    """A model and another runner on one batch."""

    case: str
    rows: int
    tokens: int
    """Real tokens in the batch."""
    padding: float
    """The share of padding, 0 to 1."""
    model_ms: float
    """Median milliseconds of the model."""
    other_ms: float
    """Median milliseconds of the other runner."""
    ratio: float
    """The other's time divided by the model's: the median over rounds."""
    least: float
    """The minimum over rounds; far from the median on a busy machine."""
    greatest: float
    """The maximum over rounds."""


def time_beside(model: PreTrainedModel, other: Callable[..., Any], rounds: int = 5) -> list[Timed]:
    """Time a model and another runner in turns, on the CPU.

    Args:
        model: In eval mode.
        other: Called with a batch: `input_ids`, `attention_mask` and `token_type_ids`, (B, S) each.
        rounds: Pairs of runs.

    Returns:
        A row for each of `MEASURED`. For a multiple-choice model each batch is one question.
    """
    rows = []
    for name, usual in MEASURED.items():
        lengths = scale_lengths(usual, model.config.max_position_embeddings)
        case = Case(name, tuple(lengths), max(lengths))
        batch = make_batch(case, model.config.vocab_size)
        batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])
        if type(model).__name__ == "BertForMultipleChoice":
            batch = {key: value[None] for key, value in batch.items()}
        calls = (functools.partial(model, **batch), functools.partial(other, batch))
        with torch.inference_mode():
            times = in_turns(calls, rounds)
        ratios = [their / my for my, their in zip(*times, strict=True)]
        mine, others = (1000 * statistics.median(seconds) for seconds in times)
        spread = (statistics.median(ratios), min(ratios), max(ratios))
        rows.append(Timed(name, case.rows, case.tokens, case.padding, mine, others, *spread))
    return rows
