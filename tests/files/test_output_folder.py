"""Atomic writes of folders, which keep files of others."""

import json
import os

import pytest

from hf_bert_impl.errors import InputError
from hf_bert_impl.files.output_folder import REPORT, check_output, claimed, output_folder
from hf_bert_impl.training.finetuning_options import FinetuningOptions
from hf_bert_impl.training.finetuning_output import check_new


def make(folder, **files):
    """Writes a result as a command does."""
    with claimed(folder, [], True), output_folder(folder) as fresh:
        for name, text in files.items():
            (fresh / name).write_text(text)


def content(folder):
    return {file.name: file.read_text() for file in folder.iterdir()}


def test_a_full_disk_is_said(tmp_path):
    full = pytest.raises(InputError, match=r"cannot be written \(No space left")
    with full, output_folder(tmp_path / "out"):
        raise OSError(28, "No space left on device")


def test_a_mounted_folder_cannot_be_replaced(tmp_path, monkeypatch):
    """Renaming it fails, so it is told before any work."""
    options = FinetuningOptions(model="m", output=tmp_path)
    monkeypatch.setattr(os.path, "ismount", lambda place: str(place) == str(tmp_path))
    for check in (lambda: make(tmp_path, a="1"), lambda: check_new(options)):
        with pytest.raises(InputError, match=r"is a mounted folder.* such as .*/model\."):
            check()
    make(tmp_path / "model", a="1")


def test_an_output_that_is_a_link(tmp_path):
    source, link, alias = (tmp_path / name for name in ("source", "link", "alias"))
    make(source, weights="1")
    link.symlink_to(tmp_path / "none")
    alias.symlink_to(source)
    for place, words in ((link, "is a dangling link"), (alias, "is in the output")):
        with pytest.raises(InputError, match=words):
            check_output(place, [source / "weights"], True)


def test_files_of_others_stay_and_those_of_older_models_go(tmp_path):
    """Weights of another model never stay, nor do files listed in a report."""
    folder = tmp_path / "out"
    report = {"result": {"files": [{"name": "made/1.txt"}, {"name": "card"}]}}
    old = {"model-00001-of-00002.safetensors": "old", "vocab.txt": "old", "modules.json": "old"}
    make(folder, notes="mine", card="old", other="old", **old, **{REPORT: json.dumps(report)})
    (folder / "made").mkdir()
    make(folder, other="new", **{"model.safetensors": "new"})
    assert content(folder) == {"notes": "mine", "other": "new", "model.safetensors": "new"}
    make(folder, **{REPORT: '{"result": {"files": [3]}}'})
    make(folder, a="1")
    assert content(folder) == {"notes": "mine", "other": "new", "a": "1"}


def test_what_a_killed_run_left_is_cleared(tmp_path):
    (tmp_path / ".out.partial-1a2b3c4d").mkdir()
    (tmp_path / ".out.partial-1a2b3c4d" / "model.safetensors").write_text("half")
    others = [".out2.partial-1a2b3c4d", ".out.old.1a2b3c4d"]
    for name in others:
        (tmp_path / name).mkdir()
    make(tmp_path / "out", a="1")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, "out"])
