"""The processes of a run: how they meet, and share settings and a disk."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import TrainingArguments

from hf_bert_impl.errors import InputError
from hf_bert_impl.training.launch import agent_store, group_store

#: On CPUs a lost process is detected at once. This limits the work of one process, such as
#: preparing a corpus, while the others wait.
WORKING = timedelta(days=7)
#: How long a file may take to appear on the other machines of a shared disk.
SHARED_DISK_SECONDS = 90.0


def join() -> PartialState:
    """Connects the processes of this run.

    Returns:
        accelerate's state. Without a launcher, the process is the main and only one.
    """
    # By default several processes on the CPU do not meet.
    on_cpu = not torch.accelerator.is_available()
    options: dict[str, Any] = {"timeout": WORKING} if on_cpu else {}
    size = int(os.environ.get("WORLD_SIZE", 1))
    if agent_store() is not None and size > 1 and not torch.distributed.is_initialized():
        options |= {"store": group_store(), "rank": int(os.environ["RANK"]), "world_size": size}
    return PartialState(cpu=on_cpu, **options)


def check_shared(state: PartialState, made: Path) -> None:
    """Waits until all processes see a file of the main process.

    Raises:
        InputError: One does not, because its machine has another disk.
    """
    state.wait_for_everyone()
    deadline = time.monotonic() + SHARED_DISK_SECONDS
    while not made.exists():
        if time.monotonic() > deadline:
            raise InputError(
                f"process {state.process_index} does not see {made}, which the main process made. "
                "Use an output on a disk that all machines share."
            )
        time.sleep(0.5)


def trainer_arguments(batch_size: int, **options: Any) -> TrainingArguments:
    """The Trainer's arguments, the same recipe for any number of processes.

    Args:
        batch_size: Examples per optimizer step, over all processes and micro-batches.
        **options: Further arguments.

    Raises:
        InputError: The batch cannot be divided evenly, or one process has several GPUs.
    """
    arguments = TrainingArguments(
        average_tokens_across_devices=True,
        use_cpu=not torch.accelerator.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        ddp_find_unused_parameters=False,
        remove_unused_columns=False,
        report_to="none",
        disable_tqdm=True,
        **options,
    )
    if arguments.device.type == "cpu":
        # transformers 5.6 loads the optimizer to this device, and torch cannot load to "cpu:0".
        arguments.__dict__["_setup_devices"] = torch.device("cpu")
    if arguments.n_gpu > 1:
        raise InputError(
            f"one process sees {arguments.n_gpu} GPUs. Start one process per GPU with `accelerate "
            "launch` or `torchrun`, or set CUDA_VISIBLE_DEVICES=0."
        )
    parts = arguments.world_size * arguments.gradient_accumulation_steps
    if batch_size % parts:
        raise InputError(
            f"batch_size={batch_size} cannot be divided into {parts} parts ({arguments.world_size} "
            f"processes, {arguments.gradient_accumulation_steps} micro-batches each). Use a "
            f"multiple of {parts}.",
            "batch_size",
        )
    arguments.per_device_train_batch_size = batch_size // parts
    arguments.per_device_eval_batch_size = batch_size // parts
    return arguments
