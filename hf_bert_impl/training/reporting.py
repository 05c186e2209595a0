"""Reports of a run while it trains: a progress bar or lines, TensorBoard, and a JSON file."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback

from hf_bert_impl.files.atomic import atomic_file
from hf_bert_impl.training.checkpointing import writing

#: The Trainer's log, one JSON object per line.
LOG = "training_log.jsonl"
TENSORBOARD = "tensorboard"
#: Formats of a log entry's values, in this order.
SHOWN = {
    "mlm_loss": "mlm {:.3f}",
    "mlm_accuracy": "acc {:.3f}",
    "perplexity": "ppl {:,.1f}",
    "nsp_loss": "nsp {:.3f}",
    "nsp_accuracy": "acc {:.3f}",
    "tokens_per_second": "{:,.0f} tokens/s",
}


class JsonLog(TrainerCallback):
    """Writes each entry of the log as a line of a file in the run's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Drops the entries of steps after the checkpoint, which repeat."""
        if state.is_world_process_zero:
            with atomic_file(self.folder / LOG) as fresh:
                text = "".join(_line(entry) for entry in state.log_history)
                fresh.write_text(text, encoding="utf-8")

    def on_log(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if state.is_world_process_zero:
            with writing("the log", self.folder), (self.folder / LOG).open("a") as file:
                file.write(_line(state.log_history[-1]))


class Progress(TrainerCallback):
    """A progress bar with the newest values; lines without a terminal."""

    def __init__(self) -> None:
        self._bar: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if state.is_world_process_zero:
            # None: a bar only on a terminal.
            self._bar = tqdm(total=state.max_steps, initial=state.global_step, disable=None)

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if self._bar is not None:
            self._bar.update(state.global_step - self._bar.n)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
        figures = show(logs or {}, args.metric_for_best_model)
        if not figures or self._bar is None:
            return
        if self._bar.disable or figures.startswith("held out"):
            self._bar.write(f"step {state.global_step}/{state.max_steps}: {figures}", sys.stderr)
        else:
            self._bar.set_postfix_str(figures)

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self.close()

    def close(self) -> None:
        """Closes the bar, also after an error."""
        if self._bar is not None:
            self._bar.close()


@contextlib.contextmanager
def progress(show: bool) -> Iterator[list[TrainerCallback]]:
    """The callbacks that show a recipe's progress."""
    bar = Progress()
    try:
        yield [bar] if show else []
    finally:
        bar.close()


def show(logs: Mapping[str, float], metric: str | None = None) -> str:
    """The values of a log entry on one line; empty if it has none.

    Args:
        logs: The entry.
        metric: A further value, the task's.
    """
    forms = {metric: f"{metric} {{:.4g}}"} | SHOWN
    prefix = "eval_" if any(f"eval_{key}" in logs for key in forms) else ""
    parts = [
        form.format(logs[f"{prefix}{key}"])
        for key, form in forms.items()
        if f"{prefix}{key}" in logs
    ]
    if "loss" in logs and not parts:
        parts = [f"loss {logs['loss']:.3f}"]
    return ("held out: " if prefix else "") + ", ".join(parts)


def tensorboard_callback(folder: Path, first_step: int) -> TrainerCallback:
    """Writes every value of the log for TensorBoard, into a folder of the run's.

    Args:
        folder: The run's folder.
        first_step: Hides events from this step on, which a stopped run left.
    """
    from torch.utils.tensorboard import SummaryWriter
    from transformers.integrations import TensorBoardCallback

    return TensorBoardCallback(SummaryWriter(str(folder / TENSORBOARD), purge_step=first_step))


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry) + "\n"
