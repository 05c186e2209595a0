"""Options of fine-tuning: the model, the training and the output."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hf_bert_impl.data.option_ranges import RANGES, WARMUP_SHARE, check_ranges
from hf_bert_impl.errors import InputError
from hf_bert_impl.training.data_split import read_shares


@dataclasses.dataclass(frozen=True)
class FinetuningOptions:
    """How to fine-tune."""

    model: str
    """The BERT to start from: a folder or a hub id."""
    output: Path
    """The folder to write."""
    epochs: float = 3.0
    """Passes over the training data."""
    batch_size: int = 32
    """Examples per optimizer step, over all processes and micro-batches."""
    learning_rate: float = 5e-5
    """The peak rate after the warm-up; it then decreases linearly to 0."""
    seeds: tuple[int, ...] = (42,)
    """May be repeated: one run per seed; the best is saved, the spread reported."""
    split: str | None = None
    """Split the data into train, validation and test by these shares, e.g. 0.8,0.1,0.1."""
    max_length: int | None = None
    """Tokens at which a sequence is cut; None for the maximum of task and model."""
    warmup: float = 0.1
    """The share of steps in which the rate rises from 0."""
    weight_decay: float = 0.01
    """AdamW's weight decay; biases and LayerNorm have none."""
    gradient_accumulation: int = 1
    """Micro-batches per step and process."""
    class_weights: str | None = None
    """balanced (all classes count equally), or NAME=WEIGHT,… (others 1)."""
    metric: str | None = None
    """The validation score of the best epoch, such as accuracy, f1 or mcc; None for the task's."""
    early_stopping: int | None = None
    """Stop after this many epochs without a better validation score; None for never."""
    bf16: bool = False
    """Compute in bfloat16 where autocast allows it."""
    overwrite: bool = False
    """Replace the output if it exists."""
    resume: bool = False
    """Resume an interrupted run from its last epoch; it ends with the same weights."""

    def __post_init__(self) -> None:
        check_ranges(self, warmup=WARMUP_SHARE)
        if self.split is not None:
            read_shares(self.split)
        allowed = RANGES["seed"]
        if len(set(self.seeds)) < max(1, len(self.seeds)) or any(
            seed not in allowed for seed in self.seeds
        ):
            raise InputError(f"`seeds` is {self.seeds}. Use {allowed} each, no two alike.", "seeds")
