"""Several processes on the CPU (gloo), on one machine or two: the losses of one process.

And the commands of docs/training.md for them, run unchanged.
"""

import dataclasses
import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from hf_bert_impl import BertModel
from hf_bert_impl.training.checkpointing import last_checkpoint
from hf_bert_impl.training.pretraining import pretrain
from tests.support.checkpoints import SPECIAL_TOKENS, assert_same_answers, save_checkpoint
from tests.training.cases import NO_DROPOUT, RUN, SIZES, WORDS, read_log, small_run, weights
from tests.training.launch_commands import (
    COMMANDS,
    HF_BERT,
    REPLICATED,
    SHARDED,
    command_with,
    launch,
)

pytestmark = pytest.mark.distributed

if not torch.distributed.is_available():
    pytest.skip("this torch has no distributed package", allow_module_level=True)


@pytest.fixture(scope="module")
def one(place):
    """The run of one process."""
    options = small_run(
        place,
        place / "one",
        sizes=SIZES | NO_DROPOUT,
        batch_size=12,
        max_steps=6,
        logging_steps=2,
        save_steps=3,
        # 29 examples: the last batch is filled up with some that must not count.
        validation_share=0.3,
    )
    pretrain(options)
    return options


def run_all(command, *runs, **first):
    """One run after the other by a launcher of docs/training.md: its start takes longer than they.

    `first` are further fields of the first run, such as `die_at`.
    """
    file = runs[0].output.with_name(f"{runs[0].output.name}.json")
    fields = [dataclasses.asdict(run) for run in runs]
    fields[0] |= first
    file.write_text(json.dumps(fields, default=str))
    launch(command, [RUN, file])


def same(one, other):
    """The same losses, scores and weights, up to the order of sums."""
    names = {"loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy"}
    names |= {f"eval_{name}" for name in names} | {"step"}
    logs = [
        [{name: entry[name] for name in names & entry.keys()} for entry in read_log(run.output)]
        for run in (one, other)
    ]
    assert_same_answers(*logs)
    a, b = weights(one.output), weights(other.output)
    # AdamW's first steps are as long for tiny gradients as for large ones.
    assert max((a[key] - b[key]).abs().max() for key in a) < 1e-4


def stopped(run, name):
    """A copy of a run that was stopped after its first checkpoint, to resume."""
    copy = dataclasses.replace(run, output=run.output.with_name(name), resume=True)
    shutil.copytree(run.output, copy.output)
    shutil.rmtree(copy.output / "checkpoint-6")
    (copy.output / "model.safetensors").unlink()
    assert last_checkpoint(copy.output).endswith("checkpoint-3")
    return copy


def test_two_processes(one):
    two = dataclasses.replace(one, output=one.output.with_name("two"), gradient_accumulation=2)
    # One process began, two resume.
    one_two = stopped(one, "one-two")
    run_all(command_with("num_processes 2"), two, one_two)
    same(one, two)
    same(one, one_two)
    states = sorted(file.name for file in (two.output / "checkpoint-6").glob("rng*"))
    assert states == ["rng_state_0.pth", "rng_state_1.pth"]
    # Two processes began, one resumes.
    two_one = stopped(two, "two-one")
    pretrain(two_one)
    same(one, two_one)


def test_sharded(one):
    """FSDP: each process holds parts of parameters, gradients and optimizer states.

    The run begins on one machine and is resumed on two. Its result is a plain BERT.
    """
    sharded = dataclasses.replace(one, output=one.output.with_name("sharded"))
    resumed = dataclasses.replace(sharded, resume=True)
    command, on_two = command_with("num_processes 2"), command_with("--num_machines 2")
    run_all(command.replace(REPLICATED, SHARDED), sharded, stop_at=4)
    run_all(on_two.replace(REPLICATED, SHARDED), resumed)
    assert (sharded.output / "checkpoint-6" / "pytorch_model_fsdp.bin").is_file()
    same(one, sharded)
    stock = AutoModel.from_pretrained(sharded.output).eval()
    assert type(stock).__module__ == "transformers.models.bert.modeling_bert"
    ids = torch.tensor([[2, 7, 11, 13, 3]])
    ours = BertModel.from_pretrained(sharded.output).eval()
    assert torch.allclose(stock(ids).last_hidden_state, ours(ids).last_hidden_state, atol=2e-5)


def test_a_killed_process_on_two_machines(one):
    """torchrun restarts all processes, which resume from the last checkpoint."""
    run = dataclasses.replace(one, output=one.output.with_name("restarted"))
    run_all(command_with("torchrun", "--nnodes 2"), run, die_at=5)
    killed = run.output.with_suffix(".killed")
    # The checkpoint from before was not made again.
    assert (run.output / "checkpoint-3").stat().st_mtime < killed.stat().st_mtime
    same(one, run)


SMALL = {
    "pretrain": "--layers 1 --hidden-size 24 --heads 4 --intermediate-size 32 --max-length 32 "
    "--batch-size 4 --max-steps 3 --config run.yaml",
    "finetune": "--batch-size 4 --epochs 1 --max-length 16",
}


# torchrun on two machines is run above.
@pytest.mark.parametrize("command", [it for it in COMMANDS if "--nnodes 2" not in it])
def test_a_command_of_the_page(command, place, tmp_path):
    shutil.copy(place / "text.txt", tmp_path / "corpus.txt")
    shutil.copytree(place / "tokenizer", tmp_path / "vocabulary")
    (tmp_path / "run.yaml").write_text("cache_dir: cache\n")
    for name in ("train", "dev"):
        lines = [f"w{n} w{n % 7}\t{'AB'[n % 2]}\n" for n in range(11)]
        (tmp_path / f"{name}.tsv").write_text("".join(lines))
    task = shlex.split(command.split(HF_BERT)[1])
    if task[0] == "finetune":
        save_checkpoint(tmp_path / "my-bert", words=(*SPECIAL_TOKENS, *WORDS))
    program = [Path(sys.executable).with_name("hf-bert"), *task, *shlex.split(SMALL[task[0]])]
    said = launch(command, program, tmp_path)
    output = task[task.index("--output") + 1]
    AutoModel.from_pretrained(tmp_path / output)
    # One process speaks: its table is printed once.
    assert sum(part.count(f"{output}: ") for part in said) == 1, said
