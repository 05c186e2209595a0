"""The processes of a run: they find each other, decide together, and know of a restart.

`torchrun` and `accelerate launch` start a process for each device, and an agent on each machine.
Where a process dies, the agents end all the others and start them anew, as often as
`--max-restarts` says.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import TrainingArguments

from hf_bert_impl.errors import InputError

T = TypeVar("T")
#: What our keys in the launcher's store begin with.
KEYS = "hf_bert_impl"
#: How long the processes of a run wait for each other to begin.
MEETING = timedelta(minutes=30)
#: On processors a lost process is noticed at once, so this only bounds how long one may work while
#: the others wait, as when the first one prepares a corpus.
WORKING = timedelta(days=7)
#: How long a file may take to be seen by the other machines of a shared disk.
SHARED_DISK_SECONDS = 90.0


class Launch:
    """What connects the processes of this run while there is no group yet, and after one broke.

    Args:
        environment: The variables that the launcher set; without them the process is alone.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self.rank = int(environment.get("RANK", 0))
        self.size = int(environment.get("WORLD_SIZE", 1))
        #: The agent's store. It outlives the processes, and so do the keys of those that died.
        self.lasting: Any = None
        #: The part of it that belongs to this start of the processes.
        self.fresh: Any = None
        #: Whether an earlier start ended for a reason that every later one would meet again.
        self.is_hopeless = False
        if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            from torch.distributed import PrefixStore, TCPStore

            address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
            store = TCPStore(address, port, is_master=False, wait_for_workers=False)
            self.lasting = PrefixStore(KEYS, store)
            self._start = self._meet()
            self.fresh = PrefixStore(self._start, self.lasting)
            self.is_hopeless = self.lasting.check(["hopeless"])

    def _meet(self) -> str:
        """Agrees with the other processes of this start on a name that no earlier start had.

        torch gives restarted processes the store of those that died, addresses included, and the
        new ones would try to connect to the dead. The number of restarts is no such name: each
        machine counts its own. So each process draws a name, the first one publishes those that it
        has seen, and whoever finds its own there answers: the dead cannot.
        """
        mine = uuid.uuid4().hex
        self.lasting.set(f"name/{self.rank}", mine)
        deadline = time.monotonic() + MEETING.total_seconds()
        others = set(range(1, self.size))
        while True:
            if self.rank == 0:
                names = [self.lasting.get(f"name/{rank}").decode() for rank in range(self.size)]
                self.lasting.set("names", " ".join(names))
                others -= {rank for rank in others if self.lasting.check([f"{mine}/{rank}"])}
                if not others:
                    return mine
            elif self.lasting.check(["names"]):
                names = self.lasting.get("names").decode().split()
                if len(names) == self.size and names[self.rank] == mine:
                    self.lasting.set(f"{names[0]}/{self.rank}", "")
                    return names[0]
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"process {self.rank} of {self.size} has waited {MEETING.seconds // 60} "
                    "minutes for the others to begin; expected all of them; look at the other "
                    "machines"
                )
            time.sleep(0.05)

    def has_begun(self, output: Path) -> bool:
        """Whether an earlier start of this launch, not this one, began to write an output."""
        key = f"output/{output.resolve()}"
        return (
            self.lasting is not None
            and self.lasting.check([key])
            and self.lasting.get(key).decode() != self._start
        )

    def begin(self, output: Path) -> None:
        """Notes that this launch writes an output from here on."""
        if self.lasting is not None:
            self.lasting.set(f"output/{output.resolve()}", self._start)

    def is_first_to_fail(self, error: BaseException) -> bool:
        """Whether no other process has failed before, so that this one is to speak.

        Args:
            error: Why it fails. Where that is what was given, the launcher's further starts fail
                at once, and without a word.
        """
        if self.fresh is None or self.is_hopeless:
            return not self.is_hopeless
        mine = str(self.rank)
        try:
            if isinstance(error, ValueError):
                self.lasting.set("hopeless", "")
            return bool(self.fresh.compare_set("failed", "", mine).decode() == mine)
        except RuntimeError:  # the agent has gone: nobody can say who was first
            return True


@functools.cache
def launch() -> Launch:
    """What the launcher of this process gave it."""
    return Launch(dict(os.environ))


def join() -> PartialState:
    """Makes the processes of this run known to each other.

    Returns:
        The state of accelerate, by which a process knows its number. A process that was started by
        no launcher is the main process and the only one.

    Raises:
        TimeoutError: Not all of them begin.
        InputError: An earlier start of this launch was refused, and so is this one.
    """
    started = launch()
    if started.is_hopeless:
        raise InputError(
            "the launcher starts again what was refused before", "other input", "see the first line"
        )
    # With the default, several processes on the CPU do not find each other.
    on_cpu = not torch.accelerator.is_available()
    options: dict[str, Any] = {}
    if started.fresh is not None and started.size > 1 and not torch.distributed.is_initialized():
        options = {"store": started.fresh, "rank": started.rank, "world_size": started.size}
        if on_cpu:
            options["timeout"] = WORKING
    return PartialState(cpu=on_cpu, **options)


def from_main(state: PartialState, compute: Callable[[], T]) -> T:
    """What the main process computes, in all processes, so that none of them decides otherwise."""
    found = [compute() if state.is_main_process else None]
    return broadcast_object_list(found)[0]


@contextlib.contextmanager
def in_turn(state: PartialState) -> Iterator[None]:
    """Lets the main process go first, then one on each other machine, then the rest.

    Each leaves its results on its disk for those that come later. If one fails, the others do not
    wait for it.
    """
    turn = 0 if state.is_main_process else 1 if state.is_local_main_process else 2
    for _ in range(turn):
        state.wait_for_everyone()
    yield
    for _ in range(2 - turn):
        state.wait_for_everyone()


def check_shared(state: PartialState, made: Path) -> None:
    """Waits until all processes see what the main process has made.

    Raises:
        InputError: One does not, because it runs on another machine with a disk of its own.
    """
    state.wait_for_everyone()
    deadline = time.monotonic() + SHARED_DISK_SECONDS
    while not made.exists():
        if time.monotonic() > deadline:
            raise InputError(
                f"process {state.process_index} does not see {made}, which the main process made",
                "an output on a disk that all machines share",
                "name a folder there",
            )
        time.sleep(0.5)


def trainer_arguments(batch_size: int, **options: Any) -> TrainingArguments:
    """The Trainer's arguments, the same recipe for any number of processes.

    Args:
        batch_size: Examples of an optimizer step, over all processes and micro-batches.
        **options: Further arguments.

    Raises:
        InputError: They cannot be shared out evenly, or one process has several GPUs.
    """
    arguments = TrainingArguments(
        average_tokens_across_devices=True,
        # With the default, several processes on the CPU do not find each other.
        use_cpu=not torch.accelerator.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        ddp_find_unused_parameters=False,
        remove_unused_columns=False,
        report_to="none",
        disable_tqdm=True,
        **options,
    )
    if arguments.n_gpu > 1:
        raise InputError(
            f"one process sees {arguments.n_gpu} GPUs",
            "a process for each",
            "start with `accelerate launch` or `torchrun`, or choose one by CUDA_VISIBLE_DEVICES",
        )
    parts = arguments.world_size * arguments.gradient_accumulation_steps
    if batch_size % parts:
        raise InputError(
            f"batch_size={batch_size} cannot be divided into {parts} parts "
            f"({arguments.world_size} processes, {arguments.gradient_accumulation_steps} "
            "micro-batches each)",
            "a multiple of that",
            "change it",
        )
    arguments.per_device_train_batch_size = batch_size // parts
    arguments.per_device_eval_batch_size = batch_size // parts
    return arguments
