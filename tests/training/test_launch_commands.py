"""The commands of docs/training.md for several processes and machines, run unchanged."""

import shlex
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from tests.support.checkpoints import SPECIAL_TOKENS, save_checkpoint
from tests.training.cases import WORDS, write_text
from tests.training.launch_commands import (
    COMMANDS,
    HF_BERT,
    launch,
)

pytestmark = pytest.mark.distributed

if not torch.distributed.is_available():
    pytest.skip("this torch has no distributed package", allow_module_level=True)

SMALL = {
    "pretrain": "--layers 1 --hidden-size 24 --heads 4 --intermediate-size 32 --max-length 32 "
    "--batch-size 4 --max-steps 3 --config run.yaml",
    "finetune": "--batch-size 4 --epochs 1 --max-length 16",
}


@pytest.fixture
def folder(tmp_path):
    """The files of the commands."""
    write_text(tmp_path / "corpus.txt", 40)
    (tmp_path / "run.yaml").write_text("cache_dir: cache\n")
    (tmp_path / "vocabulary").mkdir()
    words = (*SPECIAL_TOKENS, *WORDS)
    (tmp_path / "vocabulary" / "vocab.txt").write_text("\n".join(words) + "\n")
    for name in ("train", "dev"):
        lines = [f"w{n} w{n % 7}\t{'AB'[n % 2]}\n" for n in range(11)]
        (tmp_path / f"{name}.tsv").write_text("".join(lines))
    return tmp_path


# test_pretraining_distributed.py has torchrun on two machines.
@pytest.mark.parametrize(
    "command", [command for command in COMMANDS if "--nnodes 2" not in command]
)
def test_command(command, folder):
    if " finetune " in command:
        save_checkpoint(folder / "my-bert", words=(*SPECIAL_TOKENS, *WORDS))
    task = shlex.split(command.split(HF_BERT)[1])
    hf_bert = Path(sys.executable).with_name("hf-bert")
    said = launch(command, [hf_bert, *task, *shlex.split(SMALL[task[0]])], folder)
    output = task[task.index("--output") + 1]
    AutoModel.from_pretrained(folder / output)
    # One process speaks: its table is printed once.
    assert sum(part.count(f"{output}: ") for part in said) == 1, said
