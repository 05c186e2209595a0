"""How to fine-tune: the model, the training and the output."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hf_bert_impl.data.option_ranges import RANGES, WARMUP_SHARE, check_ranges
from hf_bert_impl.errors import InputError


@dataclasses.dataclass(frozen=True)
class FinetuningOptions:
    """How to fine-tune."""

    model: str
    """The checkpoint to begin with: a folder or a hub id."""
    output: Path
    """The folder to write."""
    epochs: float = 3.0
    """How often every training example is seen."""
    batch_size: int = 32
    """Examples of an optimizer step, over all processes and micro-batches."""
    learning_rate: float = 5e-5
    """The highest rate, reached after the warm-up; from there it falls to 0 along a line."""
    seeds: tuple[int, ...] = (42,)
    """A run each; the best on the validation data is kept, and the spread of all reported."""
    max_length: int | None = None
    """Tokens at which a sequence is cut; None for as many as task and model allow."""
    warmup: float = 0.1
    """The share of steps over which the rate rises from 0."""
    weight_decay: float = 0.01
    """AdamW's weight decay; biases and LayerNorm have none."""
    gradient_accumulation: int = 1
    """Micro-batches that a process computes one after the other for a step."""
    class_weights: str | None = None
    """balanced (every class counts as much as any other), or NAME=WEIGHT,… (others 1)."""
    early_stopping: int | None = None
    """Epochs without a better validation score after which to stop; None for never."""
    bf16: bool = False
    """Compute in bfloat16 where autocast allows it."""
    overwrite: bool = False
    """Replace the output where it exists."""

    def __post_init__(self) -> None:
        check_ranges(self, warmup=WARMUP_SHARE)
        allowed = RANGES["seed"]
        if len(set(self.seeds)) < max(1, len(self.seeds)) or any(
            seed not in allowed for seed in self.seeds
        ):
            raise InputError(
                f"the seeds are {self.seeds}", f"{allowed} each, no two alike", "change them"
            )
