"""Fine-tuning on two processes (gloo): what one process gives."""

import json
import sys
from pathlib import Path

import pytest
import torch

from hf_bert_impl.training import finetuning
from hf_bert_impl.training.finetuning import Sources, finetune
from hf_bert_impl.training.finetuning_options import FinetuningOptions
from tests.support.checkpoints import assert_same_answers, save_checkpoint
from tests.training.cases import NO_DROPOUT, RUN, task_of, write_history
from tests.training.conftest import WORDS
from tests.training.launch_commands import command_with, launch

pytestmark = pytest.mark.distributed

if not torch.distributed.is_available():
    pytest.skip("this torch has no distributed package", allow_module_level=True)

TORCHRUN = command_with("torchrun --nproc-per-node 2")


def test_two_processes(tmp_path, data, squad, monkeypatch):
    """Same losses, scores and files; the last examples are no whole batch for each process."""
    train, dev, questions = data("train", 41, 1), data("dev", 13, 2), squad(29, 12)
    sizes = {"max_position_embeddings": 43} | NO_DROPOUT
    model = save_checkpoint(tmp_path / "bert", "BertForPreTraining", words=WORDS, **sizes)
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
    launch(TORCHRUN, [RUN, tmp_path / "runs.json"])
    assert (tmp_path / "again.killed").exists()

    monkeypatch.setattr(finetuning, "write_pictures", write_history)
    for run in runs[:3]:
        task, one = run["task"], tmp_path / f"{run['task']}-one"
        options = FinetuningOptions(**settings, output=one)
        finetune(task_of(task), Sources(*run["sources"]), options)
        same(one, tmp_path / task)
    same(tmp_path / "classification-one", tmp_path / "again")
    # The masks of masked-lm are drawn by each process.
    report = json.loads((tmp_path / "masked-lm" / "metrics.json").read_text())
    first, last = (entry["loss"] for entry in report["training"]["history"])
    assert last < first
    assert not [*tmp_path.glob("*.unfinished")]


def same(one, two):
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
    (said,) = launch(TORCHRUN, program, status=1)
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, said[-3000:]
    assert "--batch-size=7 cannot be divided into 2 parts (2 processes" in errors[0]
    assert "exitcode  : 2" in said
    assert not [*tmp_path.glob("out*")]
