"""What every command that writes holds to: one writer an output, and nothing left when stopped.

And what those that train push at their end.
"""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from hf_bert_impl.cli import errors
from hf_bert_impl.files.lock import output_lock
from hf_bert_impl.hub import pushing, uploading

pytest.importorskip("sklearn", reason="pip install -e '.[train]'")
pytest.importorskip("datasets", reason="pip install -e '.[train]'")
pytest.importorskip("tensorboard", reason="pip install -e '.[train]'")
pytest.importorskip("matplotlib", reason="pip install -e '.[train]'")
pytest.importorskip("fcntl", reason="locks files as Unix does")

TEXT = "nice to meet you\nthe river rose over night\n\nyou meet the night\nand a nice river\n"
#: By command: what it calls when the output is on its way.
INSIDE = {
    "convert": "hf_bert_impl.conversion.pipeline.write_safetensors",
    "embed": "hf_bert_impl.data.vector_file.VectorFile.append",
    "export": "hf_bert_impl.export.exporting.compare",
    "finetune": "hf_bert_impl.training.finetuning_trainer.FinetuningTrainer.save_best",
    "pretrain": "hf_bert_impl.training.pretraining_trainer.PretrainingTrainer.training_step",
    "prune-heads": "hf_bert_impl.pruning.write_card",
    "push": "hf_bert_impl.hub.pushing.check_loading",
    "tokenizer": "hf_bert_impl.model.tokenization_bert.BertTokenizer.save_pretrained",
}
#: Commands that push a model, and its class.
PUSHED = {"finetune": "BertForSequenceClassification", "pretrain": "BertForPreTraining"}


@pytest.fixture
def commands(save_tiny, tmp_path):
    """The arguments of every command, by its name; each writes `new/out`."""
    out = tmp_path / "new" / "out"
    out.parent.mkdir()
    text, table = tmp_path / "text.txt", tmp_path / "table.tsv"
    text.write_text(TEXT)
    table.write_text("a nice night\tgood\nthe river rose\tbad\n" * 5)
    base = save_tiny("BertModel")
    classifier = save_tiny("BertForSequenceClassification", id2label={0: "bad", 1: "good"})
    columns = ("--text-column", 0, "--label-column", 1, "-o", out)
    tuned, pruned = (*columns, "--epochs", 1), (*columns, "--count", 1)
    sizes = ("--layers", 1, "--hidden-size", 20, "--heads", 5, "--intermediate-size", 28)
    run = ("--max-length", 16, "--batch-size", 2, "--max-steps", 2, "--cache-dir", tmp_path / "c")
    return {
        "convert": ("convert", base, out, "--no-check"),
        "embed": ("embed", base, text, "-o", out.with_suffix(".npy")),
        "export": ("export", base, out, "-f", "torch-export"),
        "finetune": ("finetune", "classification", "--model", base, "--train", table, *tuned),
        "pretrain": ("pretrain", text, "-o", out, "--tokenizer", base, *sizes, *run, "--quiet"),
        "prune-heads": ("prune-heads", classifier, "--data", table, *pruned, "--quiet"),
        "push": ("push", base, "me/mine", "--dry-run", out),
        "tokenizer": ("tokenizer", "train", text, "-o", out, "--vocab-size", 60),
    }


@pytest.mark.parametrize("name", INSIDE)
def test_two_writers(hf_bert, one_error_line, commands, tmp_path, monkeypatch, name):
    """The second is refused before any work, also where it may replace what is there."""
    out = tmp_path / "new" / ("out.npy" if name == "embed" else "out")
    monkeypatch.setattr(INSIDE[name], None)
    with output_lock(out):
        one_error_line(hf_bert(*commands[name]), f"another run is writing {out}", "wait")
        if name not in ("push", "pretrain"):
            result = hf_bert(*commands[name], "--overwrite")
            one_error_line(result, f"another run is writing {out}")
        assert [file.name for file in out.parent.iterdir()] == [f".{out.name}.lock"]
    assert not [*out.parent.iterdir()]


@pytest.mark.parametrize("name", INSIDE)
def test_told_to_end(hf_bert, commands, tmp_path, monkeypatch, name):
    """SIGTERM leaves neither half-written files nor a lock, and the command can be run again."""

    def stop(*_, **__):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    with monkeypatch.context() as patch:
        patch.setattr(INSIDE[name], stop)
        result = hf_bert(*commands[name])
    assert result.status == 128 + signal.SIGTERM
    assert "Traceback" not in result.err
    left = [file.name for file in (tmp_path / "new").rglob("*")]
    if name == "pretrain":  # a run that can go on
        assert "run.json" in left and not [file for file in left if "partial" in file]
        assert hf_bert(*commands[name], "--resume").status == 0
    else:
        assert left == []


def test_a_signal_that_is_ignored_stays_ignored():
    """As under nohup; and outside a command signals do what they did."""
    code = (
        "import os, signal; from hf_bert_impl.cli.errors import stopped_in_order\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "with stopped_in_order():\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "    if os.fork() == 0: os.kill(os.getpid(), signal.SIGTERM)\n"
        "    assert os.waitstatus_to_exitcode(os.wait()[1]) == -signal.SIGTERM\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (result.returncode, result.stderr) == (-signal.SIGTERM, b"")


def test_a_thread_handles_no_signals():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def look():
        with errors.stopped_in_order():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]


# --- pushed at the end -----------------------------------------------------------------------


@pytest.fixture(params=PUSHED)
def pushing_command(request, commands):
    """The arguments of a command, but for the repository."""
    return (*commands[request.param], "--quiet", "--push-to-hub")


def test_push(hf_bert, pushing_command, tmp_path, monkeypatch):
    """The place is looked at before the run; the model, its tokenizer and its folder go there."""
    calls, out = [], tmp_path / "new" / "out"

    def reserve(name, class_name):
        assert not out.exists()
        calls.append((name, class_name))

    def push(model, name, *, tokenizer, source):
        assert source == out and (out / "model.safetensors").is_file()
        assert len(tokenizer) == model.config.vocab_size
        if pushing_command[0] == "finetune":
            assert model.config.id2label == {0: "bad", 1: "good"}
        calls.append((name, type(model).__name__))

    monkeypatch.setattr(uploading, "reserve", reserve)
    monkeypatch.setattr(pushing, "push", push)
    result = hf_bert(*pushing_command, "me/my-bert")
    assert result.status == 0, result.err
    assert calls == [("me/my-bert", PUSHED[pushing_command[0]])] * 2


def test_push_that_cannot_be(hf_bert, one_error_line, pushing_command, tmp_path, monkeypatch):
    """Said before the model is trained, and before a repository is made for nothing."""
    out = tmp_path / "new" / "out"
    monkeypatch.setattr(uploading, "get_token", lambda: None)
    one_error_line(hf_bert(*pushing_command, "me/my-bert"), "there is no token", "hf auth login")
    one_error_line(hf_bert(*pushing_command, "a/b/c"), "a/b/c", "OWNER/NAME")
    assert not out.exists()
    out.mkdir(parents=True)
    (out / "file").write_text("")
    monkeypatch.setattr(uploading, "reserve", lambda *_: pytest.fail("a repository was made"))
    one_error_line(hf_bert(*pushing_command, "me/my-bert"), "out exists and")


def test_push_that_fails_at_the_end(
    hf_bert, one_error_line, pushing_command, tmp_path, monkeypatch
):
    def refuse(*_, **__):
        raise uploading.PushError("the hub answers 503", "an answer", "wait")

    monkeypatch.setattr(uploading, "reserve", lambda *_: None)
    monkeypatch.setattr(pushing, "push", refuse)
    result = hf_bert(*pushing_command, "me/my-bert")
    one_error_line(result, "503", "it is whole", "hf-bert push")
    assert (tmp_path / "new" / "out" / "model.safetensors").is_file()
