"""The command line itself: help, versions, exit statuses and errors of one line."""

import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from hf_bert_impl.cli import main, verify
from hf_bert_impl.errors import InputError
from hf_bert_impl.training import launch
from tests.cli.cases import RUNS, paths_in


def test_help_and_wrong_paths_are_told_without_torch(place):
    """Each file and folder that a command reads, missing; models without config; outputs."""
    train = "finetune BertModel labels.tsv --task classification -o new/out"
    lines = {
        *(f"{train} {more}" for more in ("-o out.json", "--validation none", "--test none")),
        "pretrain texts.txt -o out.json",
        "pretrain texts.txt -o new/out --validation none",
        *(f"convert BertModel -o new/out {it} none" for it in ("--config", "--reference")),
        "evaluate squad predictions.json squad.json --na-prob none",
        "push m a--b",
    }
    for name, line in RUNS.items():
        for before, word, after in paths_in(name):
            if not word.startswith("new/"):
                lines.add(" ".join((*before, "./none", *after)))
        model = line.split()[len(name.split())]
        if Path(model, "config.json").exists() and name not in ("inspect", "convert"):
            lines.add(line.replace(f"{name} {model}", f"{name} new"))
    code = (
        "import sys; sys.modules['torch'] = None; from hf_bert_impl.cli import main;"
        "assert main(['--help']) == 0 and 'transformers' not in sys.modules;"
        "sys.exit(any([main(line.split()) != 2 for line in sys.argv[1:]]))"
    )
    command = [sys.executable, "-c", code, *sorted(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=place)
    assert done.returncode == 0 and "fill-mask" in done.stdout, done.stderr
    assert len(re.findall("^error: .*", done.stderr, re.MULTILINE)) == len(lines) > 40


def test_below_a_launcher(hf_bert, monkeypatch, tmp_path):
    """A start in vain ends before anything else; of several processes one reports the error."""
    store = torch.distributed.HashStore()
    monkeypatch.setattr(launch, "agent_store", lambda: store)
    monkeypatch.setenv("LOCAL_RANK", "1")
    for start, (line, said) in enumerate(
        (
            ("finetune ./nowhere --task classification -o out", "There is no folder"),
            ("finetune ./nowhere --task classification -o out", "what was refused before"),
            ("pretrain none.txt --model ./nowhere -o out", "what was refused before"),
        )
    ):
        store.set("port", str(start))
        status, out, err = hf_bert(*line.split())
        assert (status, out) == (2, "") and said in err
    store.set("port", "another")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    for said in (1, 0):
        result = hf_bert("verify", "./nowhere")
        assert (result.status, result.err.count("error: ")) == (2, said)
    assert "There is no folder" in (tmp_path / "error.json").read_text()


def test_version_help_and_traceback(hf_bert, tmp_path):
    assert hf_bert("--version").printed.startswith("hf_bert_impl ")
    assert "transformers 5" in hf_bert("--version").out
    status, out, err = hf_bert()
    assert (status, err) == (2, "") and "fill-mask" in out
    command = ("verify", tmp_path / "none")
    for arguments in (("--debug", *command), (*command, "--debug")):
        status, _, err = hf_bert(*arguments)
        assert status == 2 and "Traceback" in err
        assert err.splitlines()[-1].startswith("error: There is no folder")
    assert "Traceback" not in hf_bert(*command).err


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (ValueError("two\n lines"), 2, "error: two lines\n"),
        (InputError("use `bf16=False`", "bf16=False"), 2, "error: use --no-bf16\n"),
        (FileNotFoundError(2, "No such file", "x"), 2, "error: [Errno 2] No such file: 'x'\n"),
        (OverflowError("int too big"), 2, "error: A number is too large (int too"),
        (ValueError("half: \ud83d"), 2, "error: half: \\ud83d\n"),
        (KeyError("x"), 1, "error: KeyError: 'x'. This is a bug"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_by_kind(hf_bert, monkeypatch, error, status, words):
    monkeypatch.setattr(verify, "open_checkpoint", Mock(side_effect=error))
    result = hf_bert("verify", "x")
    assert result.status == status
    assert result.err.startswith(words)
    assert result.err.count("\n") == (status != 130)
    assert ("--debug" in result.err) == (status == 1)


def test_the_shell_completes_values(capsys, monkeypatch):
    monkeypatch.setenv("_HF_BERT_COMPLETE", "complete_bash")
    for words, expected in (
        ("export m d --format on", {"onnx"}),
        ("convert s --from-format t", {"torch", "tf1"}),
        ("finetune m --task token", {"token-classification"}),
    ):
        monkeypatch.setenv("COMP_WORDS", f"hf-bert {words}")
        monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
        with pytest.raises(SystemExit):
            main([])
        assert set(capsys.readouterr().out.split()) == expected
