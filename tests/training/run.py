"""Runs in processes of their own, which can be killed where it hurts most.

Usage: run.py RUNS.json [N]. The file holds the options of one pre-training run or more, or `task`,
`sources` and options of fine-tuning. `stop_at` is a step at which a run is interrupted,
and `die_at` one at which the last process kills itself, once. With N the process is killed halfway
through the N-th file that torch writes.
"""

import contextlib
import itertools
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from hf_bert_impl.training import finetuning, pretraining
from hf_bert_impl.training.finetuning_options import FinetuningOptions
from hf_bert_impl.training.pretraining_options import PretrainingOptions
from tests.training.cases import task_of


class StopAt(TrainerCallback):
    """Interrupts a run when it begins a step.

    With a file `killed` it kills the last process instead, unless that was done before.
    """

    def __init__(self, step: int | None, killed: Path | None = None) -> None:
        self.step, self.killed = step, killed

    def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if state.global_step != self.step:
            return
        if self.killed is None:
            raise KeyboardInterrupt
        if args.process_index == args.world_size - 1 and not self.killed.exists():
            self.killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def kill_in_write(number: int) -> None:
    save, calls = torch.save, itertools.count(1)

    def half_save(obj: Any, f: Any, *args: Any, **rest: Any) -> None:
        if next(calls) == number:
            Path(f).write_bytes(b"half a file")
            os.kill(os.getpid(), signal.SIGKILL)
        save(obj, f, *args, **rest)

    torch.save = half_save


def shard_on_cpu() -> None:
    """accelerate shards models on accelerators only; torch does it on the CPU as well."""
    from accelerate import state
    from accelerate.utils import DistributedType

    begin = state.AcceleratorState.__init__

    def init(self: Any, *args: Any, fsdp_plugin: Any = None, **rest: Any) -> None:
        begin(self, *args, fsdp_plugin=fsdp_plugin, **rest)
        if fsdp_plugin is not None:
            self.fsdp_plugin = fsdp_plugin
        if "fsdp_plugin" in self._shared_state:
            self.distributed_type = DistributedType.FSDP

    state.AcceleratorState.__init__ = init


def write_history(folder: Path, task: Any, splits: Any, outputs: Any, history: list) -> None:
    """In place of pictures: what the Trainer logged, the loss of each step among it."""
    (folder / "history.json").write_text(json.dumps(history))


def main() -> None:
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        shard_on_cpu()
    # Pictures would take longer than the run.
    vars(pretraining)["draw_curves"] = lambda file, *_, **__: Path(file).write_bytes(b"")
    finetuning.write_pictures = write_history
    if len(sys.argv) > 2:
        kill_in_write(int(sys.argv[2]))
    torch.set_num_threads(1)
    for fields in json.loads(Path(sys.argv[1]).read_text()):
        done = Path(fields["output"]).with_suffix(".killed")
        stops = [StopAt(fields.pop("stop_at", None)), StopAt(fields.pop("die_at", None), done)]
        fields["output"] = Path(fields["output"])
        with contextlib.suppress(KeyboardInterrupt):
            if "task" in fields:
                task = task_of(fields.pop("task"))
                sources = finetuning.Sources(*fields.pop("sources"))
                finetuning.finetune(task, sources, FinetuningOptions(**fields), stops)
            else:
                fields["files"] = tuple(fields["files"])
                pretraining.pretrain(PretrainingOptions(**fields), stops)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # as the command line does
    # Now and then a thread of torch's aborts a process that is being taken down ("terminate called
    # without an active exception"), after all is written. The run is over here.
    os._exit(0)


if __name__ == "__main__":
    main()
