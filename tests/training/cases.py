"""Small runs, their data, and their results."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from hf_bert_impl.tasks.base import Columns, Task
from hf_bert_impl.tasks.registry import make_task
from hf_bert_impl.training.pretraining_options import PretrainingOptions

RUN = Path(__file__).with_name("run.py")
WORDS = [f"w{number}" for number in range(40)]
SIZES = {"num_hidden_layers": 2, "hidden_size": 30, "num_attention_heads": 5}
SIZES |= {"intermediate_size": 44, "max_position_embeddings": 43}
#: Random numbers of dropout are of each process.
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
#: Of the log, and different each time.
TIMES = {"tokens_per_second", "train_runtime", "train_loss"}
TIMES |= {"train_samples_per_second", "train_steps_per_second"}


def run_apart(*runs: dict[str, Any], killed_at: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs options of run.py in a process of its own; see there for when it is killed."""
    file = Path(runs[0]["output"]).with_name("run.json")
    file.write_text(json.dumps(runs, default=str))
    command = [sys.executable, str(RUN), str(file), str(killed_at)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


class Recipe(TrainerCallback):
    """Keeps the rate of each step in thousandths, and the optimizer's settings by parameter."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.groups: dict[str, tuple[float, float]] = {}

    def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        names = {id(parameter): name for name, parameter in rest["model"].named_parameters()}
        self.rates.append(1000 * rest["lr_scheduler"].get_last_lr()[0])
        for group in rest["optimizer"].param_groups:
            for parameter in group["params"]:
                self.groups[names[id(parameter)]] = group["weight_decay"], group["eps"]


# --- pre-training ----------------------------------------------------------------------------


def write_text(file: Path, count: int) -> None:
    """Documents, each of 8 of the 40 words."""
    rng = random.Random(0)
    documents = []
    for _ in range(count):
        topic = rng.randrange(0, 40, 8)
        words = WORDS[topic : topic + 8]
        sentences = (rng.choices(words, k=rng.randint(3, 9)) for _ in range(rng.randint(2, 9)))
        documents.append("\n".join(map(" ".join, sentences)))
    file.write_text("\n\n".join(documents) + "\n")


def small_run(place: Path, output: Path, **changes: Any) -> PretrainingOptions:
    paths = {"tokenizer": str(place / "tokenizer"), "cache_dir": str(place / "cache")}
    steps = {"max_steps": 8, "batch_size": 6, "logging_steps": 3, "save_steps": 4}
    training = {"sizes": SIZES, "max_length": 40, "learning_rate": 1e-3, "validation_share": 0.2}
    fields: dict[str, Any] = {"files": (str(place / "text.txt"),), "output": output}
    return PretrainingOptions(**(fields | paths | steps | training | changes))


def read_log(output: Path) -> list[dict[str, Any]]:
    lines = (output / "training_log.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


# --- fine-tuning -----------------------------------------------------------------------------

#: By task, its columns of the fixture `data`.
COLUMNS = {
    "classification": Columns("text", None, "mood"),
    "several labels": Columns("text", None, "moods"),
    "regression": Columns("text", None, "score"),
    "token-classification": Columns(),
    "multiple-choice": Columns("text", "choices", "right"),
    "masked-lm": Columns("line"),
    "question-answering": Columns(),
}


def task_of(name: str) -> Task:
    """A task on the fixture `data`, or questions on the fixture `squad`."""
    if name == "several labels":
        return make_task("classification", COLUMNS[name], multi_label=True)
    return make_task(name, COLUMNS[name])
