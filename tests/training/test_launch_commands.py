"""The commands of docs/training.md for several processes and machines, run as they stand there."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from tests.checkpoints import SPECIAL_TOKENS, save_checkpoint
from tests.training.pretraining_cases import LOCAL, WORDS, free_port, write_text
from tests.training.test_pretraining_distributed import SHARDED

pytestmark = pytest.mark.slow

if not torch.distributed.is_available():
    pytest.skip("this torch has no distributed package", allow_module_level=True)

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
SECTIONS = PAGE.partition("## Several processes")[2].partition("## Fine-tuning")[0]
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", SECTIONS, re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
]
LAUNCHERS = {
    "torchrun": "-m torch.distributed.run",
    "accelerate launch": "-m accelerate.commands.launch --mixed_precision no --dynamo_backend no",
}
SMALL = {
    "pretrain": "--layers 1 --hidden-size 24 --heads 4 --intermediate-size 32 --max-length 32 "
    "--batch-size 4 --max-steps 3 --cache-dir cache",
    "finetune": "--batch-size 4 --epochs 1 --max-length 16",
}


def here(command, machine, port):
    """A command of the page, in small and on this machine, which stands for several."""
    launcher, task = command.split(" $(which hf-bert) ")
    name = next(name for name in LAUNCHERS if launcher.startswith(name))
    launcher = launcher.replace(name, LAUNCHERS[name]).replace("first-machine", "127.0.0.1")
    launcher = re.sub(r"29[45]00", str(port), launcher).replace("_rank 0", f"_rank {machine}")
    launcher = launcher.replace("-node 8", "-node 1").replace("processes 16", "processes 2")
    if "--rdzv-endpoint" in launcher:
        launcher += f" {' '.join(LOCAL)}"
    elif "_port" not in launcher and name == "accelerate launch":
        launcher += f" --main_process_port {port}"
    task += f" {SMALL[task.split()[0]]}"
    hf_bert = str(Path(sys.executable).with_name("hf-bert"))
    return [sys.executable, *shlex.split(launcher), hf_bert, *shlex.split(task)]


@pytest.fixture
def folder(tmp_path):
    """What the commands name."""
    write_text(tmp_path / "corpus.txt", 40)
    (tmp_path / "vocabulary").mkdir()
    words = (*SPECIAL_TOKENS, *WORDS)
    (tmp_path / "vocabulary" / "vocab.txt").write_text("\n".join(words) + "\n")
    for name in ("train", "dev"):
        lines = [f"w{n} w{n % 7}\t{'AB'[n % 2]}\n" for n in range(11)]
        (tmp_path / f"{name}.tsv").write_text("".join(lines))
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command, folder):
    if " finetune " in command:
        save_checkpoint(folder / "my-bert", words=(*SPECIAL_TOKENS, *WORDS))
    machines = 2 if re.search("nnodes 2|num_machines 2", command) else 1
    port = free_port()
    agents = [
        subprocess.Popen(
            here(command, machine, port),
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
    assert [agent.returncode for agent in agents] == [0] * machines, "\n".join(said)[-5000:]
    output = command.split("--output ")[1]
    AutoModel.from_pretrained(folder / output)
    # One process speaks: its table is printed once.
    assert sum(part.count(f"{output}: ") for part in said) == 1, said


def test_page_names_what_is_tested():
    assert len(COMMANDS) == 4
    assert " ".join(SHARDED) in " ".join(SECTIONS.split())
