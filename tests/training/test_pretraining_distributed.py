"""Several processes on the CPU (gloo), on one machine or two: the losses of one process."""

import dataclasses
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

from hf_bert_impl import BertModel
from hf_bert_impl.training.checkpointing import last_checkpoint
from hf_bert_impl.training.pretraining import pretrain
from tests.training.cases import RUN, SIZES, small_run
from tests.training.launch_commands import REPLICATED, SHARDED, command_with, launch

pytestmark = pytest.mark.distributed

if not torch.distributed.is_available():
    pytest.skip("this torch has no distributed package", allow_module_level=True)


@pytest.fixture(scope="module")
def options(place):
    """Without dropout, whose random numbers are of each process."""
    return small_run(
        place,
        place / "one",
        sizes=SIZES | {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0},
        batch_size=12,
        max_steps=6,
        logging_steps=2,
        save_steps=3,
        # 29 examples: the last batch is filled up with some that must not count.
        validation_share=0.3,
    )


@pytest.fixture(scope="module")
def one(options):
    """The run of one process."""
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
    logs = [
        [json.loads(line) for line in (run.output / "training_log.jsonl").open()]
        for run in (one, other)
    ]
    names = {"loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy"}
    names |= {f"eval_{name}" for name in names}
    for a, b in zip(*logs, strict=True):
        assert a["step"] == b["step"]
        for name in names & set(a):
            assert b[name] == pytest.approx(a[name], abs=2e-5), (a["step"], name)
    a, b = (load_file(run.output / "model.safetensors") for run in (one, other))
    assert a.keys() == b.keys()
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
    """FSDP: both processes hold parts of parameters, gradients and optimizer states."""
    sharded = dataclasses.replace(one, output=one.output.with_name("sharded"))
    resumed = dataclasses.replace(sharded, resume=True)
    command = command_with("num_processes 2").replace(REPLICATED, SHARDED)
    run_all(command, sharded, resumed, stop_at=4)
    assert (sharded.output / "checkpoint-6" / "pytorch_model_fsdp.bin").is_file()
    same(one, sharded)


def test_a_killed_process_on_two_machines(one):
    """torchrun restarts all processes, which resume from the last checkpoint."""
    run = dataclasses.replace(one, output=one.output.with_name("restarted"))
    run_all(command_with("torchrun", "--nnodes 2"), run, die_at=5)
    killed = run.output.with_suffix(".killed")
    # The checkpoint from before was not made again.
    assert (run.output / "checkpoint-3").stat().st_mtime < killed.stat().st_mtime
    same(one, run)


def test_sharded_on_two_machines(one):
    run = dataclasses.replace(one, output=one.output.with_name("sharded-on-two"))
    run_all(command_with("--num_machines 2").replace(REPLICATED, SHARDED), run)
    assert (run.output / "checkpoint-6" / "pytorch_model_fsdp.bin").is_file()
    same(one, run)
    # The result is a plain BERT.
    stock = AutoModel.from_pretrained(run.output).eval()
    assert type(stock).__module__ == "transformers.models.bert.modeling_bert"
    ids = torch.tensor([[2, 7, 11, 13, 3]])
    ours = BertModel.from_pretrained(run.output).eval()
    assert torch.allclose(stock(ids).last_hidden_state, ours(ids).last_hidden_state, atol=2e-5)
