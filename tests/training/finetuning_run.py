"""Fine-tuning in processes that a launcher starts.

Usage: finetuning_run.py RUNS.json, a list of objects with `task`, `columns`, `sources` and
`options`, and `die_at` for a share of the steps after which the last process kills itself, once.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from hf_bert_impl.tasks.base import Columns
from hf_bert_impl.tasks.registry import make_task
from hf_bert_impl.training import finetuning
from hf_bert_impl.training.finetuning import Sources, finetune
from hf_bert_impl.training.finetuning_options import FinetuningOptions
from tests.training.finetuning_cases import write_history


def run(
    task: str, columns: list, sources: list, options: dict, die_at: float | None = None
) -> None:
    output = Path(options.pop("output"))
    killed = output.with_suffix(".killed")
    is_last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1

    class Die(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            is_time = die_at is not None and state.global_step >= die_at * state.max_steps
            if is_last and is_time and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    settings = FinetuningOptions(output=output, **options)
    finetune(make_task(task, Columns(*columns)), Sources(*sources), settings, [Die()])


if __name__ == "__main__":
    torch.set_num_threads(1)
    finetuning.write_pictures = write_history
    for case in json.loads(Path(sys.argv[1]).read_text()):
        run(**case)
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # see pretraining_run.py
