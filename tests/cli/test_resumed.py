"""No work of a bulk command is lost when it is killed, and files of others are left alone."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from pyarrow.parquet import read_table
from tqdm import tqdm

from hf_bert_impl.cli import main
from hf_bert_impl.distributed import job as jobs
from tests.cli.cases import LINES, assert_complete, expected, give_input, one_error_line

KILLS = 10


def run(*command):
    """Runs a command in a process of its own."""
    tqdm.set_lock(threading.RLock())  # its own is shared with forks: a killed one may hold it
    sys.exit(main([str(word) for word in command]))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows cannot fork")
@pytest.mark.parametrize("name", ["vectors.npy", "vectors.parquet", "vectors"])
def test_killed_ten_times(model, tmp_path, output, name):
    """At random moments: each row once, in the bytes of a run without an interruption."""
    draw, file, whole = random.Random(name), tmp_path / "a.jsonl", tmp_path / "whole" / name
    rows = [{"id": n, "text": "the river " * draw.randrange(12) or None} for n in range(300)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    output = output.with_name(name)
    options = ["--part-size", "2", "--quiet", "--column", "text"]
    options += [] if name.endswith(".npy") else ["--id-column", "id"]
    parts = output if name == "vectors" else output.with_name(f"{name}.parts")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])

    def start(place):
        process = context.Process(target=run, args=("embed", model, file, "-o", place, *options))
        process.start()
        return process

    def made():
        return {file: file.stat().st_mtime_ns for file in parts.glob("part-*")}

    for _ in range(KILLS):
        process, until = start(output), len(made()) + draw.randrange(10)
        while len(made()) < until and process.is_alive():
            time.sleep(0.002)
        time.sleep(draw.random() / 20)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    done = made()
    assert 0 < len(done) < len(rows) / 2
    whole.parent.mkdir()
    contents = []
    for place in (output, whole):
        process = start(place)
        process.join()
        assert process.exitcode == 0
        files = [file for file in place.parent.rglob("*") if file.is_file()]
        contents.append({file.name: file.read_bytes() for file in files})
        contents[-1].pop("manifest.json", None)  # has times
    assert contents[0] == contents[1]
    rejects = contents[0]["rejects.jsonl" if name == "vectors" else f"{name}.rejects.jsonl"]
    assert rejects.count(b"\n") == sum(row["text"] is None for row in rows) > 0
    if name == "vectors":
        assert made().items() >= done.items()  # none was made again


@pytest.fixture
def interrupted(interrupt, model, lines, output):
    """A run that an interrupt ended after two of five texts; gives its arguments."""
    arguments = ("embed", model, lines, "-o", output, "--part-size", 1)
    result = interrupt(2, *arguments)
    assert result.err == "interrupted; run the same command again to resume\n"
    assert not output.exists()
    return arguments


@pytest.mark.parametrize("more", [[], ["--resume"], ["--overwrite"]])
@pytest.mark.parametrize("left", [None, "", ".partial-x", "_job.json"])
def test_the_same_command_resumes(hf_bert, interrupted, model, output, left, more):
    """Also if it was killed while the folder was made or removed, from any remains."""
    folder = output.with_name("vectors.npy.parts")
    settings = (folder / "_job.json").read_bytes()
    if left is not None:
        shutil.rmtree(folder)
        folder.mkdir()
    if left == "_job.json":
        (folder / left).write_bytes(settings)
    elif left:
        (folder / left).mkdir()
    report = hf_bert(*interrupted, "--json", *more).report
    assert report["resumed_from"] == (2 if left is None else 0)
    assert (report["resumed_from"] + report["rows"], report["parts"]) == (5, 5)
    assert_complete(output, expected(model))


def test_another_token_budget_that_changes_no_bit(hf_bert, interrupt, model, lines, output):
    command = ("embed", model, lines, "-o", output, "--part-size", 1, "--json", "--batch-tokens")
    interrupt(2, *command, 50)
    one_error_line(hf_bert(*command, 7), "--batch-tokens was 50, now 7")
    interrupt(2, *command, 50, "--batch-invariant", "--overwrite")
    assert hf_bert(*command, 7, "--batch-invariant").report["resumed_from"] == 2


def test_nothing_is_left_of_a_run_that_has_made_nothing(interrupt, model, lines, output):
    """So that other options can be given without more words."""
    assert interrupt(0, "embed", model, lines, "-o", output) == (130, "", "")
    assert not [*output.parent.iterdir()]


@pytest.mark.parametrize("name", ["vectors.npy", "vectors"])
def test_standard_input_is_resumed(hf_bert, interrupt, model, output, monkeypatch, name):
    """Parts whose rows are the same are there; others are made again, and none is left over."""
    output = output.with_name(name)
    command = ("embed", model, "-", "-o", output, "--part-size", 1, "--json")
    give_input(monkeypatch, [*LINES, "more"])
    interrupt(5, *command)
    texts = [LINES[0], "other", *LINES[2:4]]
    give_input(monkeypatch, texts)
    report = hf_bert(*command).report
    assert (report["resumed_from"], report["rows"]) == (3, 1)
    if name == "vectors.npy":
        assert_complete(output, expected(model, texts))
    else:
        assert len([*output.glob("part-*")]) == len(texts)


@pytest.mark.parametrize(("first", "ids"), [("b", ["b", "c"]), (7, [7])])
def test_standard_input_with_other_ids(hf_bert, interrupt, model, output, monkeypatch, first, ids):
    """A part whose own rows are the same is made again where an earlier row changes its ids."""
    output = output.with_suffix(".parquet")
    command = ("embed", model, "-", "-o", output, "--part-size", 1, "--quiet")
    command += ("--column", "text", "--id-column", "id")
    rows = [json.dumps({"text": "river", "id": it}) for it in ("a", "b", "c")]
    give_input(monkeypatch, rows)
    interrupt(2, *command)
    give_input(monkeypatch, [json.dumps({"text": "river", "id": first}), *rows[1:]])
    assert hf_bert(*command).status == 0
    assert read_table(output)["id"].to_pylist() == ids


@pytest.mark.parametrize("end", ["join_files", "sync", 0, 1, 3])
def test_stopped_after_the_last_part(hf_bert, interrupt, model, lines, output, end):
    """In joining parts, or after so many were removed: no half file, and nothing is made again."""
    command = ("embed", model, lines, "-o", output, "--part-size", 2)
    is_written, discard = isinstance(end, int), jobs.Job.discard
    left = iter(range(end if is_written else 0))

    def unlink(file):
        if next(left, None) is None:
            raise KeyboardInterrupt
        os.remove(file)

    def stop(*given):
        if is_written:
            with patch.object(Path, "unlink", unlink):
                discard(*given)
        given[-1].write_bytes(b"half")
        raise KeyboardInterrupt

    with patch.object(*((jobs.Job, "discard") if is_written else (jobs, end)), stop):
        assert hf_bert(*command, "-q").status == 130
    assert output.exists() == is_written
    with patch.object(jobs.Job, "compute", None):
        said = hf_bert(*command).printed
    assert (said == f"{output} is finished\n") == is_written
    assert_complete(output, expected(model))
    # What an interrupted --overwrite has left is no reason to replace the older output.
    interrupt(2, *command, "--overwrite")
    one_error_line(hf_bert(*command), "exists", "--overwrite")
    assert hf_bert(*command, "--overwrite").status == 0
    assert_complete(output, expected(model))


def test_files_of_others_are_left_alone(hf_bert, interrupted, output, tmp_path):
    """A newer output, a link, and what no interrupted run wrote beside it."""
    beside = output.with_name("vectors.npy.parts")
    parts = sorted(beside.iterdir())
    output.write_bytes(b"mine")
    one_error_line(hf_bert(*interrupted), "exists", "--overwrite")
    assert output.read_bytes() == b"mine" and sorted(beside.iterdir()) == parts
    output.unlink()
    output.symlink_to(tmp_path / "none")
    one_error_line(hf_bert(*interrupted), "exists", "--overwrite")
    output.unlink()
    shutil.rmtree(beside)
    beside.write_text("mine")
    one_error_line(hf_bert(*interrupted, "--overwrite"), "vectors.npy.parts is a file")
    beside.unlink()
    (beside / "mine").mkdir(parents=True)
    one_error_line(hf_bert(*interrupted, "--overwrite"), "no job has written")
    assert (beside / "mine").exists()


@pytest.mark.parametrize("ending", ["", ".rejects.jsonl"])
@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_the_texts_are_no_output(hf_bert, model, lines, output, monkeypatch, ending, link):
    text = lines.read_text()
    beside = output.with_name(output.name + ending)
    lines.rename(beside)
    if link is not None:
        link(beside, lines)
    source = beside if link is None else lines
    command = ("embed", model, source, "-o", output, "--overwrite")
    one_error_line(hf_bert(*command), f"This command reads {beside}", "Choose another output")
    with source.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        one_error_line(hf_bert("embed", model, "-", *command[3:]), f"This command reads {beside}")
    assert source.read_text() == text
    assert [*output.parent.iterdir()] == [beside]
