"""Losses of some steps of fine-tuning and pre-training, on whatever device this process sees.

python -m benchmarks.gpu.training FOLDER
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from hf_bert_impl.benchmark.cases import sentences
from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.tasks.registry import make_task
from hf_bert_impl.training.finetuning import FinetuningOptions, Sources, finetune
from hf_bert_impl.training.pretraining import PretrainingOptions, pretrain

STEPS, BATCH = 8, 8


class Losses(TrainerCallback):
    """The losses that a Trainer logs."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_step_begin(self, args: Any, *_: Any, **rest: Any) -> None:
        """Makes every step be logged."""
        args.logging_steps = 1

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
        """Takes the loss of a step."""
        self.values += [logs[name] for name in ("loss", "mlm_loss") if name in logs][:1]


def finetuned(folder: str, scratch: Path) -> list[float]:
    """Classification of made-up texts."""
    lines = (f"{text}\t{'ab'[index % 2]}" for index, text in enumerate(sentences(STEPS * BATCH)[0]))
    data = scratch / "train.tsv"
    data.write_text("\n".join(["text\tlabel", *lines]), encoding="utf-8")
    losses = Losses()
    options = FinetuningOptions(
        folder, scratch / "tuned", epochs=1, batch_size=BATCH, max_length=64
    )
    finetune(make_task("classification"), Sources(str(data)), options, [losses])
    return losses.values


def pretrained(folder: str, scratch: Path) -> list[float]:
    """Masked words and next sentences of made-up text."""
    text = scratch / "text.txt"
    every = sentences(40 * BATCH)[0]
    documents = ("\n".join(every[start : start + 8]) for start in range(0, len(every), 8))
    text.write_text("\n\n".join(documents), encoding="utf-8")
    losses = Losses()
    options = PretrainingOptions(
        files=(str(text),),
        output=scratch / "pretrained",
        model=folder,
        max_steps=STEPS,
        batch_size=BATCH,
        max_length=64,
        precision="float32",
        logging_steps=1,
        cache_dir=str(scratch / "cache"),
    )
    pretrain(options, [losses])
    return losses.values


if __name__ == "__main__":
    found: dict[str, list[float] | str] = {}
    with tempfile.TemporaryDirectory() as place:
        for name, run in (("fine-tuning", finetuned), ("pre-training", pretrained)):
            try:
                found[name] = run(sys.argv[1], Path(place))
            except InputError as error:
                if "not installed" not in str(error):
                    raise
                found[name] = one_line(error)
    print(json.dumps(found))
