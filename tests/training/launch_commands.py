"""The commands of docs/training.md for several processes and machines, and how tests run them."""

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
SECTIONS = PAGE.partition("## Several processes")[2].partition("## Fine-tuning")[0]
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", SECTIONS, re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
]
HF_BERT = " $(which hf-bert) "
LAUNCHERS = {
    "torchrun": "-m torch.distributed.run",
    "accelerate launch": "-m accelerate.commands.launch --mixed_precision no --dynamo_backend no",
}
#: In place of this the page names SHARDED. It means torchrun, on GPUs or not.
REPLICATED = "--multi_gpu"
SHARDED = (
    "--use_fsdp --fsdp_version 2 --fsdp_reshard_after_forward true "
    "--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP "
    "--fsdp_transformer_layer_cls_to_wrap BertLayer --fsdp_state_dict_type FULL_STATE_DICT"
)


def command_with(*words: str) -> str:
    """The one command of the page that has all these words."""
    (found,) = (command for command in COMMANDS if all(word in command for word in words))
    return found


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def here(command: str, machine: int, port: int, program: list) -> list[str]:
    """The page's command to launch a program on this machine, in the role of several."""
    launcher = command.split(HF_BERT)[0]
    name = next(name for name in LAUNCHERS if launcher.startswith(name))
    launcher = launcher.replace(name, LAUNCHERS[name]).replace("first-machine", "127.0.0.1")
    launcher = re.sub(r"29[45]00", str(port), launcher).replace("_rank 0", f"_rank {machine}")
    launcher = launcher.replace("-node 8", "-node 1").replace("processes 16", "processes 2")
    if "--rdzv-endpoint" in launcher:
        launcher += " --local-addr 127.0.0.1"
    elif "_port" not in launcher:
        launcher += f" --{'main_process' if name == 'accelerate launch' else 'master'}_port {port}"
    return [sys.executable, *shlex.split(launcher), *map(str, program)]


def launch(command: str, program: list, folder: Path | None = None, status: int = 0) -> list[str]:
    """Runs a program with the launcher of a command, by an agent for each machine.

    Args:
        command: One of the page.
        program: Replaces `hf-bert` and its arguments.
        folder: The working directory.
        status: Of each agent.

    Returns:
        The output of each agent and its processes.
    """
    machines = 2 if re.search("--nnodes 2|--num_machines 2", command) else 1
    port = free_port()
    agents = [
        subprocess.Popen(
            here(command, machine, port, program),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for machine in range(machines)
    ]
    try:
        said = [agent.communicate(timeout=280)[0] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert [agent.returncode for agent in agents] == [status] * machines, "\n".join(said)[-6000:]
    return said
