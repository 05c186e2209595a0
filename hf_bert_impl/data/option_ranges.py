"""Ranges of numeric options, checked before any work."""

from __future__ import annotations

import dataclasses
import numbers
from typing import Any

from hf_bert_impl.errors import InputError

MILLION = 1_000_000
#: The largest seed of NumPy's generators.
LARGEST_SEED = 2**32 - 1


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, without `low` if `above` and without `high` if `below`."""

    low: float
    high: float
    whole: bool = False
    above: bool = False
    below: bool = False

    def __contains__(self, value: Any) -> bool:
        kind: Any = numbers.Integral if self.whole else numbers.Real
        if isinstance(value, bool) or not isinstance(value, kind):
            return False
        # Every comparison with NaN is false, so NaN is in no range.
        is_high_enough = value > self.low if self.above else value >= self.low
        return is_high_enough and (value < self.high if self.below else value <= self.high)

    def check(self, name: str, value: Any) -> None:
        """Raises InputError, with the name, for a number outside the range."""
        if value not in self:
            raise InputError(f"{name} is {value!r}. Use {self}.", name)

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        low = f"{'above' if self.above else 'from'} {self.low:,}"
        return f"{kind} {low} {'to below' if self.below else 'to'} {self.high:,}"


def check_length(name: str, length: int, least: int, positions: int) -> None:
    """Raises InputError if a length in tokens is below `least` or above the model's positions."""
    if not least <= length <= positions:
        raise InputError(
            f"{name} is {length}. Use {least} to {positions}, for which the model has positions.",
            name,
        )


COUNT = Range(1, MILLION, whole=True)
STEPS = Range(1, 1000 * MILLION, whole=True)
PROCESSES = Range(1, 1024, whole=True)
POSITIVE_SHARE = Range(0, 1, above=True)
#: By field. AdamW moves a weight by about the rate per step and shrinks it by rate times decay.
#: Above 1 either destroys the weights at once.
RANGES = {
    "batch_size": COUNT,
    "batch_tokens": STEPS,
    "doc_stride": Range(0, MILLION, whole=True),
    "dupe_factor": COUNT,
    "early_stopping": COUNT,
    "epochs": Range(0, MILLION, above=True),
    "eval_steps": STEPS,
    "gradient_accumulation": COUNT,
    "keep_checkpoints": COUNT,
    "learning_rate": Range(0, 1, above=True),
    "limit": STEPS,
    "logging_steps": STEPS,
    "max_answer_len": COUNT,
    "max_length": COUNT,
    "max_predictions": COUNT,
    "max_question_len": COUNT,
    "max_seq_len": COUNT,
    "max_steps": STEPS,
    "mlm_probability": POSITIVE_SHARE,
    "part_size": STEPS,
    "probability": POSITIVE_SHARE,
    "processes": PROCESSES,
    "save_steps": STEPS,
    "seed": Range(0, LARGEST_SEED, whole=True),
    "short_seq_prob": Range(0, 1),
    "tolerance": Range(0, MILLION),
    "top_k": COUNT,
    "validation_share": Range(0, 1, below=True),
    "warmup": Range(0, 1000 * MILLION),
    "weight_decay": Range(0, 1),
    "workers": Range(0, 1024, whole=True),
}
#: For a warm-up that is always a share of the steps.
WARMUP_SHARE = Range(0, 1, below=True)


def check_ranges(options: Any, **others: Range) -> None:
    """Checks the numbers of an options dataclass; a field with the default None may be None.

    Args:
        options: The dataclass.
        **others: Ranges that override `RANGES`.

    Raises:
        ValueError: A number is outside its range, or NaN.
    """
    for field in dataclasses.fields(options):
        value, allowed = getattr(options, field.name), (RANGES | others).get(field.name)
        if allowed is not None and not (value is None and field.default is None):
            allowed.check(field.name, value)
