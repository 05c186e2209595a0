"""Several processes on the CPU (gloo), on one machine or two: the results of one process.

And the commands of docs/training.md for them, run unchanged.
"""

import dataclasses
import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from hf_bert_impl.training.checkpointing import last_checkpoint
from hf_bert_impl.training.pretraining import pretrain
from tests.support.checkpoints import SPECIAL_TOKENS, assert_same_answers, save_checkpoint
from tests.training import cases, conftest
from tests.training.cases import NO_DROPOUT, RUN, SIZES, read_log, run_apart, small_run, weights

pytestmark = pytest.mark.distributed

if not torch.distributed.is_available():
    pytest.skip("this torch has no distributed package", allow_module_level=True)

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
SECTIONS = PAGE.partition("## Several processes")[2].partition("## Fine-tuning")[0]
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", SECTIONS, re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
]
HF_BERT = " $(which hf-bert) "
#: Words of the page, and what stands for them here; options of the page go before those added.
HERE = {
    "torchrun": "-m torch.distributed.run --local-addr 127.0.0.1 --rdzv-backend c10d "
    "--rdzv-endpoint 127.0.0.1:0",
    "accelerate launch": "-m accelerate.commands.launch --mixed_precision no --dynamo_backend no "
    "--main_process_port 0",
    "first-machine": "127.0.0.1",
    "-node 8": "-node 1",
    "processes 16": "processes 2",
}
#: What the page replaces, and by which options. The first means torchrun, on GPUs or not.
REPLICATED, *SHARDED = re.findall("`(--[^`]+)`", SECTIONS.partition("**FSDP**")[2])[:3]


def command_with(*words: str) -> str:
    """The one command of the page that has all these words."""
    (found,) = (command for command in COMMANDS if all(word in command for word in words))
    return found


def here(command: str, machine: int, port: int, program: list) -> list[str]:
    """The page's command to launch a program on this machine, in the role of several."""
    launcher = command.split(HF_BERT)[0]
    for words, ours in HERE.items():
        launcher = launcher.replace(words, ours)
    launcher = re.sub(r"29[45]00", str(port), launcher).replace("_rank 0", f"_rank {machine}")
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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {"cwd": folder, "text": True}
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    agents = [
        subprocess.Popen(here(command, machine, port, program), **options)
        for machine in range(machines)
    ]
    try:
        said = [agent.communicate(timeout=280)[0] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert [agent.returncode for agent in agents] == [status] * machines, "\n".join(said)[-6000:]
    return said


# --- pre-training ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one(place):
    """The run of one process."""
    steps = {"batch_size": 12, "max_steps": 6, "logging_steps": 2, "save_steps": 3}
    # 29 examples: the last batch is filled up with some that must not count.
    changes = {"sizes": SIZES | NO_DROPOUT, "validation_share": 0.3}
    options = small_run(place, place / "one", **steps, **changes)
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
    """FSDP: each process holds parts of parameters, gradients and optimizer states.

    The run begins on one machine and is resumed on two. Its result has a plain BERT's tensors.
    """
    sharded = dataclasses.replace(one, output=one.output.with_name("sharded"))
    resumed = dataclasses.replace(sharded, resume=True)
    command, on_two = command_with("num_processes 2"), command_with("--num_machines 2")
    run_all(command.replace(REPLICATED, " ".join(SHARDED)), sharded, stop_at=4)
    run_all(on_two.replace(REPLICATED, " ".join(SHARDED)), resumed)
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
        save_checkpoint(tmp_path / "my-bert", words=(*SPECIAL_TOKENS, *cases.WORDS))
    program = [Path(sys.executable).with_name("hf-bert"), *task, *shlex.split(SMALL[task[0]])]
    said = launch(command, program, tmp_path)
    output = task[task.index("--output") + 1]
    AutoModel.from_pretrained(tmp_path / output)
    # One process speaks: its table is printed once.
    assert sum(part.count(f"{output}: ") for part in said) == 1, said


# --- fine-tuning -----------------------------------------------------------------------------


def test_fine_tuning_on_two_processes(tmp_path, data, squad):
    """Same losses, scores and files; the last examples are no whole batch for each process."""
    train, dev, questions = data("train", 41, 1), data("dev", 13, 2), squad(29, 12)
    sizes = {"max_position_embeddings": 43} | NO_DROPOUT
    model = save_checkpoint(tmp_path / "bert", "BertForPreTraining", words=conftest.WORDS, **sizes)
    settings = {"model": str(model), "batch_size": 12, "learning_rate": 1e-3, "epochs": 2}
    runs = [
        {"task": task, "sources": sources, "output": str(tmp_path / task)} | settings
        for task, sources in (
            # Of the last step, one process has 5 examples and the other none.
            ("classification", (train, dev, dev)),
            ("question-answering", (questions, questions)),
            ("regression", (train, train)),
            ("masked-lm", (train, train)),
        )
    ]
    # Micro-batches; and a process is lost, after which the launcher restarts both.
    again = {"output": str(tmp_path / "again"), "gradient_accumulation": 2, "die_at": 5}
    (tmp_path / "runs.json").write_text(json.dumps([runs[0] | again, *runs]))
    launch(command_with("torchrun --nproc-per-node 2"), [RUN, tmp_path / "runs.json"])
    assert (tmp_path / "again.killed").exists()

    ones = [run | {"output": f"{run['output']}-one"} for run in runs[:3]]
    assert run_apart(*ones).returncode == 0
    for one, run in zip(ones, runs, strict=False):
        same_reports(Path(one["output"]), Path(run["output"]))
    same_reports(tmp_path / "classification-one", tmp_path / "again")
    # The masks of masked-lm are drawn by each process.
    report = json.loads((tmp_path / "masked-lm" / "metrics.json").read_text())
    first, last = (entry["loss"] for entry in report["training"]["history"])
    assert last < first
    assert not [*tmp_path.glob("*.unfinished")]


def same_reports(one, two):
    assert {file.name for file in one.iterdir()} == {file.name for file in two.iterdir()}
    reports = [json.loads((folder / "metrics.json").read_text()) for folder in (one, two)]
    for report, folder in zip(reports, (one, two), strict=True):
        del report["training"]["seconds"], report["training"]["gradient_accumulation"]
        report["steps"] = [
            {key: value for key, value in entry.items() if key in ("step", "loss", "learning_rate")}
            for entry in json.loads((folder / "history.json").read_text())
        ]
    assert "loss" in reports[0]["steps"][0]
    assert_same_answers(*reports, tolerance=1e-4)  # up to the order of sums


def test_an_error_is_printed_once(tiny_bert, tmp_path, data):
    program = [Path(sys.executable).with_name("hf-bert"), "finetune", tiny_bert, data("a", 41, 1)]
    program += ["--task", "classification", "--label-column", "mood", "--batch-size", "7"]
    program += ["--output", tmp_path / "out"]
    (said,) = launch(command_with("torchrun --nproc-per-node 2"), program, status=1)
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, said[-3000:]
    assert "--batch-size=7 cannot be divided into 2 parts (2 processes" in errors[0]
    assert "exitcode  : 2" in said
    assert not [*tmp_path.glob("out*")]
