"""Pre-training that is killed, interrupted, or out of disk, and resumes."""

import dataclasses
import shutil

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import hf_bert_impl
from hf_bert_impl.training import resumable_trainer
from hf_bert_impl.training.checkpointing import CheckpointError, SafetensorError, last_checkpoint
from hf_bert_impl.training.pretraining import pretrain
from tests.training.cases import SIZES, read_log, run_apart, same_weights
from tests.training.run import StopAt


@pytest.mark.slow
def test_killed_and_resumed(options):
    """By SIGKILL in the middle of writing a checkpoint; the end is the same to the bit."""
    whole = options(max_steps=None, epochs=1.5)
    killed = dataclasses.replace(whole, output=whole.output.with_name("killed"))
    steps = pretrain(whole).steps
    assert steps > 12
    # Four files of each checkpoint are torch's: this is the second one's optimizer state.
    assert run_apart(dataclasses.asdict(killed), "6").returncode == -9
    places = {file.name for file in killed.output.glob("checkpoint-*")}
    assert places == {"checkpoint-4", "checkpoint-8"}
    assert last_checkpoint(killed.output).endswith("checkpoint-4")
    # Leftovers of kills in the last file of a checkpoint, and in other files.
    (killed.output / "checkpoint-99").mkdir()
    (killed.output / "checkpoint-99" / "trainer_state.json").write_text('{"epoch": 1.')
    (killed.output / ".partial-x").mkdir()
    assert pretrain(dataclasses.replace(killed, resume=True)).steps == steps
    assert same_weights(whole.output, killed.output)
    assert read_log(whole.output) == read_log(killed.output)
    assert not [*killed.output.glob("checkpoint-99"), *killed.output.glob(".partial-*")]


def test_interrupted_and_resumed(plain, options):
    """The end is the same to the bit as without the interruption."""
    whole, run = plain[0], options(eval_steps=5)
    with pytest.raises(KeyboardInterrupt):
        pretrain(run, [StopAt(7)])
    # Options without effect on the result may change.
    resumed = dataclasses.replace(run, resume=True, workers=1, keep_checkpoints=1)
    first = pretrain(resumed)
    assert [file.name for file in run.output.glob("checkpoint-*")] == ["checkpoint-8"]
    assert same_weights(whole.output, run.output)
    assert read_log(whole.output) == read_log(run.output)
    events = EventAccumulator(str(run.output / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("train/mlm_loss")] == [3, 4, 6, 8]
    # And after the last checkpoint.
    (run.output / "model.safetensors").unlink()
    again = pretrain(resumed)
    assert same_weights(whole.output, run.output)
    assert again.training == first.training and again.steps == 8


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 7])
def test_a_stream_of_examples_is_resumed(options, step):
    """Before the first checkpoint, too."""
    whole = options(streaming=True, validation_share=0.0)
    stopped = dataclasses.replace(whole, output=whole.output.with_name("stopped"))
    pretrain(whole)
    with pytest.raises(KeyboardInterrupt):
        pretrain(stopped, [StopAt(step)])
    pretrain(dataclasses.replace(stopped, resume=True))
    assert same_weights(whole.output, stopped.output)
    assert read_log(whole.output) == read_log(stopped.output)


def test_resuming_another_run(plain, write, tmp_path):
    run = dataclasses.replace(plain[0], output=tmp_path / "run", resume=True)
    shutil.copytree(plain[0].output, run.output)
    text = write("other.txt", "w1\nw2\n\nw3\nw4\n")
    write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nw1\n")
    for changes, words in (
        ({"learning_rate": 0.002}, "options.learning_rate was 0.001, now 0.002"),
        ({"sizes": {**SIZES, "num_hidden_layers": 3}}, "model.num_hidden_layers was 2, now 3"),
        ({"files": (str(text),)}, r"\(text was '.*', now '.*'\)\. Resume with those"),
        ({"tokenizer": str(tmp_path)}, "tokenizer was"),
        ({"validation": (str(text),)}, r"\(validation_text was '.*', now '.*'\)"),
        ({"gradient_accumulation": 3}, "options.gradient_accumulation was 1, now 3"),
        ({"output": tmp_path / "none"}, "there is no run to resume in .*none: it has no run.json"),
        ({"resume": False}, "has files, or a run to continue with `resume=True`"),
    ):
        with pytest.raises(ValueError, match=words):
            pretrain(dataclasses.replace(run, **changes))
    assert same_weights(run.output, plain[0].output)
    (run.output / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json is not JSON"):
        pretrain(run)


@pytest.mark.parametrize(
    ("target", "name", "error"),
    [
        pytest.param(
            *(torch, "save", RuntimeError("[enforce fail at inline_container.cc:664] . pos 64")),
            marks=pytest.mark.slow,
        ),
        (hf_bert_impl.BertForPreTraining, "save_pretrained", SafetensorError("No space left")),
        (resumable_trainer, "sync", OSError(28, "No space left on device")),
    ],
)
def test_disk_full(options, monkeypatch, target, name, error):
    """One line; the checkpoint before stays, and the run resumes from it."""
    run = options()
    real = getattr(target, name)

    def fail(*args, **kwargs):
        if (run.output / "checkpoint-8").exists():
            raise error
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(target, name, fail)
        words = r"the checkpoint of step 8 could not be written to .*run .*checkpoint-4 is complete"
        with pytest.raises(CheckpointError, match=words):
            pretrain(run)
    names = {file.name for file in run.output.iterdir()}
    assert names == {"checkpoint-4", "run.json", "tensorboard", "training_log.jsonl"}
    assert pretrain(dataclasses.replace(run, resume=True)).steps == 8
