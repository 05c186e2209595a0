"""Training that is killed, interrupted, out of disk or spoilt; it resumes to the same bits."""

import dataclasses
import json
from unittest.mock import patch

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import hf_bert_impl
from hf_bert_impl.finite import not_finite
from hf_bert_impl.training import finetuning, finetuning_output, resumable_trainer
from hf_bert_impl.training.checkpointing import CheckpointError, SafetensorError
from hf_bert_impl.training.finetuning_trainer import FinetuningTrainer
from hf_bert_impl.training.pretraining import pretrain
from hf_bert_impl.training.resumable_trainer import TrainingDiverged
from tests.training.cases import SIZES, read_log, run_apart, task_of
from tests.training.run import StopAt


def content(folder):
    """The names of its files, the bytes of its weights, and what was logged without times."""
    weights = (folder / "model.safetensors").read_bytes()
    names = {file.name for file in folder.iterdir() if not file.name.startswith("checkpoint-")}
    if "training_log.jsonl" in names:
        return names, weights, read_log(folder)
    report = json.loads((folder / "metrics.json").read_text())
    del report["training"]["seconds"]
    return names, weights, report


def interrupted(run, *arguments, **options):
    with pytest.raises(KeyboardInterrupt):
        run(*arguments, **options)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["pretraining", "masked-lm", "question-answering"])
def test_killed_and_resumed(options, tiny_bert, tmp_path, data, squad, task):
    """By SIGKILL in the middle of writing a checkpoint, for tasks that draw masks or tune."""
    if task == "pretraining":
        settings = dataclasses.asdict(options(max_steps=None, epochs=1.5))
    else:
        file = data("text", 31, 7) if task == "masked-lm" else squad(29, 12)
        settings = {"task": task, "sources": (file, file), "model": str(tiny_bert)}
        settings |= {"epochs": 4, "batch_size": 8, "learning_rate": 4e-3}
    whole, killed = (settings | {"output": tmp_path / name} for name in ("whole", "killed"))
    assert run_apart(whole).returncode == 0
    # Four files of each checkpoint are torch's: this is the second one's optimizer state.
    assert run_apart(killed, killed_at=6).returncode == -9
    first, second = tmp_path.glob("killed*/**/checkpoint-*")
    # Leftovers of kills in the last file of a checkpoint, and in other files.
    (first.parent / "checkpoint-99").mkdir()
    (first.parent / "checkpoint-99" / "trainer_state.json").write_text('{"epoch": 1.')
    (second.parent / ".partial-x").mkdir()
    done = run_apart(killed | {"resume": True})
    assert done.returncode == 0, done.stderr[-3000:]
    assert content(tmp_path / "whole") == content(tmp_path / "killed")
    assert not [*tmp_path.rglob("checkpoint-99")]


# --- pre-training ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({"eval_steps": 5}, 7),
        # Before the first checkpoint, too.
        pytest.param({"streaming": True, "validation_share": 0.0}, 2, marks=pytest.mark.slow),
        pytest.param({"streaming": True, "validation_share": 0.0}, 7, marks=pytest.mark.slow),
    ],
)
def test_interrupted_and_resumed(options, tmp_path, changes, step):
    """Also after the last checkpoint; options without effect on the result may change."""
    run = options(**changes)
    whole = dataclasses.replace(run, output=tmp_path / "whole")
    pretrain(whole)
    interrupted(pretrain, run, [StopAt(step)])
    resumed = dataclasses.replace(run, resume=True, workers=1, keep_checkpoints=1)
    first = pretrain(resumed)
    assert [file.name for file in run.output.glob("checkpoint-*")] == ["checkpoint-8"]
    assert content(whole.output) == content(run.output)
    events = EventAccumulator(str(run.output / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("train/mlm_loss")] == [3, 4, 6, 8]
    (run.output / "model.safetensors").unlink()
    again = pretrain(resumed)
    assert content(whole.output) == content(run.output)
    assert again.training == first.training and again.steps == 8


def test_resuming_another_run(options, write, tmp_path):
    run = options(max_steps=1)
    pretrain(run)
    run, model = dataclasses.replace(run, resume=True), run.output / "model.safetensors"
    before = model.read_bytes()
    text = write("other.txt", "w1\nw2\n\nw3\nw4\n")
    write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nw1\n")
    for changes, words in (
        ({"learning_rate": 0.002}, "options.learning_rate was 0.001, now 0.002"),
        ({"sizes": {**SIZES, "num_hidden_layers": 3}}, "model.num_hidden_layers was 2, now 3"),
        ({"files": (str(text),)}, r"\(text was '.*', now '.*'\)\. Resume with those"),
        ({"tokenizer": str(tmp_path)}, "tokenizer was"),
        ({"validation": (str(text),)}, r"\(validation_text was '.*', now '.*'\)"),
        ({"gradient_accumulation": 3}, "options.gradient_accumulation was 1, now 3"),
    ):
        with pytest.raises(ValueError, match=words):
            pretrain(dataclasses.replace(run, **changes))
    assert model.read_bytes() == before
    (run.output / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json is not JSON"):
        pretrain(run)


DISK_FULL = (
    (resumable_trainer, "sync", OSError(28, "No space left on device")),
    (hf_bert_impl.BertForPreTraining, "save_pretrained", SafetensorError("No space left")),
    (torch, "save", RuntimeError("[enforce fail at inline_container.cc:664] . pos 64")),
)


@pytest.mark.parametrize(("target", "name", "error"), DISK_FULL)
def test_disk_full(options, target, name, error):
    """One line; the checkpoint before stays, and the run resumes from it."""
    run, real = options(), getattr(target, name)

    def fail(*args, **kwargs):
        if (run.output / "checkpoint-8").exists():
            raise error
        return real(*args, **kwargs)

    words = r"the checkpoint of step 8 could not be written to .*run .*checkpoint-4 is complete"
    with patch.object(target, name, fail), pytest.raises(CheckpointError, match=words):
        pretrain(run)
    names = {file.name for file in run.output.iterdir()}
    assert names == {"checkpoint-4", "run.json", "tensorboard", "training_log.jsonl"}
    assert pretrain(dataclasses.replace(run, resume=True)).steps == 8


# --- fine-tuning -----------------------------------------------------------------------------


@pytest.mark.parametrize("with_validation", [True, False])
def test_interrupted_again_and_again(run, tmp_path, with_validation):
    """Within an epoch, after the last one of a seed, in the next seed, and before the last move."""
    options = {"seeds": (5, 6), "epochs": 3.4, "batch_size": 9, "learning_rate": 4e-3}
    options |= {"early_stopping": 2, "metric": "f1"} if with_validation else {"validation": None}
    run(**options, output=tmp_path / "whole")
    work = tmp_path / "out.unfinished"
    interrupted(run, callbacks=[StopAt(12)], **options)
    options["resume"] = True
    newest = max((work / "seed-5").iterdir(), key=lambda place: place.stat().st_mtime)
    assert newest.name == "checkpoint-10"
    with patch.object(finetuning, "write_results", side_effect=KeyboardInterrupt):
        interrupted(run, **options)
    interrupted(run, callbacks=[StopAt(7)], **options)
    # Only the best model of the first seed is kept, and it was not trained again.
    assert len([*(work / "seed-5").iterdir()]) == 1
    assert [place.name for place in (work / "seed-6").iterdir()] == ["checkpoint-5"]
    with patch.object(finetuning_output, "swap_in", side_effect=KeyboardInterrupt):
        interrupted(run, **options)
    run(**options)
    assert content(tmp_path / "whole") == content(tmp_path / "out")
    assert not work.exists()


def test_early_stopping_counts_the_epochs_before_the_interruption(run, monkeypatch):
    task, scores = task_of("classification"), iter([0.9, 0.5, 0.6, 0.7, 0.8])
    monkeypatch.setattr(type(task), "score", lambda *data: {"accuracy": next(scores)})
    options = {"epochs": 9, "batch_size": 20, "early_stopping": 2}
    interrupted(run, task, [StopAt(4)], **options)
    history = run(task, **options, resume=True)["training"]["history"]
    assert [entry["accuracy"] for entry in history] == [0.9, 0.5, 0.6]


def test_a_run_with_other_settings_is_not_resumed(run, data):
    options = {"epochs": 2, "batch_size": 8, "resume": True}
    with pytest.raises(ValueError, match=r"no run to resume in .*out.unfinished: it has no run.js"):
        run(**options)
    interrupted(run, callbacks=[StopAt(6)], **options | {"resume": False})
    for changes, words in (
        ({"learning_rate": 1e-4}, "options.learning_rate was 5e-05, now 0.0001"),
        ({"gradient_accumulation": 2}, "options.gradient_accumulation was 1, now 2"),
        ({"metric": "mcc"}, "options.metric was None, now 'mcc'"),
        ({"validation": data("other", 12, 9)}, "data.validation was"),
        ({"task": task_of("several labels")}, "data.train was"),
        ({"resume": False}, r"out.unfinished has a run to continue with `resume=True` in it"),
    ):
        with pytest.raises(ValueError, match=words):
            run(**options | changes)
    assert run(**options)["training"]["best_epoch"] in (1, 2)


# --- weights and losses that are not finite ----------------------------------------------------


def test_a_loss_that_is_not_finite(run, tmp_path, monkeypatch):
    """The old output stays, and so does the best model of the run, if there is one."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    compute = FinetuningTrainer.compute_loss
    for step, words in (
        (2, r"step 2 is inf\. .* \(5e-05\)\. No model was written$"),
        (3, r"step 3 is inf\. .* The best model so far is in .*checkpoint-2$"),
    ):

        def spoilt(self, *args, step=step, **rest):
            loss = compute(self, *args, **rest)
            return loss * torch.inf if self.state.global_step == step - 1 else loss

        monkeypatch.setattr(FinetuningTrainer, "compute_loss", spoilt)
        with pytest.raises(TrainingDiverged, match=f"the loss of {words}") as e:
            run(batch_size=20, epochs=3, overwrite=True)
        assert (tmp_path / "out" / "mine").read_text() == "mine"
        assert tmp_path.joinpath("out.unfinished").exists() == (step == 3)
    kept = str(e.value).rpartition(" in ")[2]
    assert not not_finite(hf_bert_impl.BertForSequenceClassification.from_pretrained(kept))


def test_weights_that_are_not_finite_are_not_saved(run, tmp_path, monkeypatch):
    """Nor scored, also where no validation data ask for it."""
    train = FinetuningTrainer.training_step

    def spoilt(self, *args, **rest):
        loss = train(self, *args, **rest)
        self.model.classifier.weight.data[0, 0] = torch.nan  # the gradient is there already
        return loss

    monkeypatch.setattr(FinetuningTrainer, "training_step", spoilt)
    for changes in ({}, {"validation": None}):
        words = "after step 1 classifier.weight is not finite"
        with pytest.raises(TrainingDiverged, match=words):
            run(batch_size=40, **changes)
        assert not [*tmp_path.glob("out*")]
