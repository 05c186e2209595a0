"""`hf-bert embed`: no work is lost when it is killed, and files of others are left alone."""

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import threading
import time

import numpy as np
import pytest
from pyarrow.parquet import read_table
from tqdm import tqdm

from hf_bert_impl.cli import main
from hf_bert_impl.distributed import job as jobs
from hf_bert_impl.distributed.job import Job
from tests.cli.embed.cases import LINES, assert_complete, expected, give_input, json_lines

SECONDS_TO_START = 120
KILLS = 10


def run(*command):
    """Runs a command in a process of its own."""
    tqdm.set_lock(threading.RLock())  # its own is shared with forks: a killed one may hold it
    sys.exit(main([str(word) for word in command]))


@pytest.fixture
def start():
    """Starts a command in a process that is forked from one that has imported all."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])

    def start(*command):
        process = context.Process(target=run, args=command)
        process.start()
        return process

    return start


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows cannot fork")
@pytest.mark.parametrize("name", ["vectors.npy", "vectors.parquet", "vectors"])
def test_killed_ten_times(start, model, tmp_path, output, name):
    """At random moments: each row once, in the bytes of a run without an interruption."""
    draw = random.Random(name)
    texts = [f"the river rose and {'you ' * draw.randrange(12)}" for _ in range(300)]
    file = tmp_path / "a.jsonl"
    rows = json_lines(texts, "text").replace('"text": "the river rose and you "', '"text": null')
    file.write_text(rows)
    output, whole = output.with_name(name), tmp_path / name
    options = ["--part-size", "2", "--quiet"]
    options += [] if name.endswith(".npy") else ["--id-column", "id"]

    def run_to_the_end(place):
        process = start("embed", model, file, "-o", place, *options)
        process.join()
        assert process.exitcode == 0

    run_to_the_end(whole)
    folder = output if name == "vectors" else output.with_name(f"{name}.parts")
    ending = "npy" if name.endswith(".npy") else "parquet"
    for _ in range(KILLS):
        process = start("embed", model, file, "-o", output, *options)
        until = len([*folder.glob(f"part-*.{ending}")]) + draw.randrange(10)
        end, pause = time.monotonic() + SECONDS_TO_START, draw.random() / 20
        while len([*folder.glob(f"part-*.{ending}")]) < until and time.monotonic() < end:
            time.sleep(0.002)
        time.sleep(pause)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    done = {file: file.stat().st_mtime_ns for file in folder.glob(f"part-*.{ending}")}
    assert 0 < len(done) < len(texts) / 2
    run_to_the_end(output)

    def content(place):
        """The files of an output, without the manifest, which has times."""
        inside = [*place.glob("part-*.parquet"), place / "rejects.jsonl"]
        files = inside if name == "vectors" else place.parent.glob(f"{name}*")
        return {file.name: file.read_bytes() for file in files}

    found = content(output)
    assert found == content(whole)
    (rejects,) = (rows for file, rows in found.items() if file.endswith("rejects.jsonl"))
    assert rejects.count(b"\n") == rows.count("null") > 0
    if name == "vectors":
        assert {file: file.stat().st_mtime_ns for file in done} == done  # none was made again
        assert len(found) == 1 + len(texts) / 2
        assert not [*output.rglob(".partial-*")]
    else:
        assert len([*output.parent.iterdir()]) == 2
    if name == "vectors.npy":
        found, good = np.load(output), [it != "the river rose and you " for it in texts]
        assert np.abs(found[good] - expected(model, texts)[good]).max() < 1e-5
        assert np.isnan(found[np.logical_not(good)]).all()


@contextlib.contextmanager
def stopped_after(monkeypatch, count):
    """Ctrl-C comes when so many parts are made."""
    make, made = Job.compute, []

    def stop(self, *arguments):
        if len(made) == count:
            raise KeyboardInterrupt
        made.append(make(self, *arguments))
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr(Job, "compute", stop)
        yield


@pytest.fixture
def interrupted(hf_bert, model, lines, output, monkeypatch):
    """A run that an interrupt ended after two of five texts; gives its arguments."""
    arguments = ("embed", model, lines, "-o", output, "--part-size", 1)
    with stopped_after(monkeypatch, 2):
        result = hf_bert(*arguments)
    assert (result.status, result.err) == (
        130,
        "interrupted; run the same command again to resume\n",
    )
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


def test_the_token_budget_may_change_where_it_changes_no_bit(
    hf_bert, one_error_line, model, lines, output, monkeypatch
):
    command = ("embed", model, lines, "-o", output, "--part-size", 1, "--json", "--batch-tokens")
    for more in ([], ["--batch-invariant"]):
        with stopped_after(monkeypatch, 2):
            assert hf_bert(*command, 50, *more, "--overwrite").status == 130
        result = hf_bert(*command, 7, *more)
        if more:
            assert result.report["resumed_from"] == 2
        else:
            one_error_line(result, "--batch-tokens was 50, now 7")


def test_nothing_is_left_of_a_run_that_has_made_nothing(hf_bert, model, lines, output, monkeypatch):
    """So that other options can be given without more words."""
    with stopped_after(monkeypatch, 0):
        assert hf_bert("embed", model, lines, "-o", output) == (130, "", "")
    assert not [*output.parent.iterdir()]


@pytest.mark.parametrize("name", ["vectors.npy", "vectors"])
def test_standard_input_is_resumed(hf_bert, model, output, monkeypatch, name):
    """Parts whose rows are the same are there; others are made again, and none is left over."""
    output = output.with_name(name)
    command = ("embed", model, "-", "-o", output, "--part-size", 1, "--json")
    give_input(monkeypatch, [*LINES, "more"])
    with stopped_after(monkeypatch, 5):
        assert hf_bert(*command).status == 130
    texts = [LINES[0], "other", *LINES[2:4]]
    give_input(monkeypatch, texts)
    report = hf_bert(*command).report
    assert (report["resumed_from"], report["rows"]) == (3, 1)
    if name == "vectors.npy":
        assert_complete(output, expected(model, texts))
    else:
        assert len([*output.glob("part-*")]) == len(texts)


@pytest.mark.parametrize(("first", "ids"), [("b", ["b", "c"]), (7, [7])])
def test_standard_input_with_other_ids(hf_bert, model, output, monkeypatch, first, ids):
    """A part whose own rows are the same is made again where an earlier row changes its ids."""
    output = output.with_suffix(".parquet")
    command = ("embed", model, "-", "-o", output, "--part-size", 1, "--quiet")
    command += ("--column", "text", "--id-column", "id")
    rows = [json.dumps({"text": "river", "id": it}) for it in ("a", "b", "c")]
    give_input(monkeypatch, rows)
    with stopped_after(monkeypatch, 2):
        assert hf_bert(*command).status == 130
    give_input(monkeypatch, [json.dumps({"text": "river", "id": first}), *rows[1:]])
    assert hf_bert(*command).status == 0
    assert read_table(output)["id"].to_pylist() == ids


@pytest.mark.parametrize("name", ["vectors.npy", "vectors.parquet"])
@pytest.mark.parametrize("step", ["join_files", "sync"])
def test_stopped_while_the_parts_are_joined(hf_bert, model, lines, output, monkeypatch, name, step):
    """There is no half-written file, and no part is made again."""
    output = output.with_name(name)
    command = ("embed", model, lines, "-o", output, "--part-size", 2, "--json")

    def stop(*files):
        files[-1].write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(jobs, step, stop)
        assert hf_bert(*command).status == 130
    assert not output.exists()
    report = hf_bert(*command).report
    assert (report["resumed_from"], report["parts_made"]) == (len(LINES), 0)
    assert [*output.parent.iterdir()] == [output]
    if name == "vectors.npy":
        assert_complete(output, expected(model))
    else:
        assert read_table(output)["id"].to_pylist() == [*range(len(LINES))]


def test_files_of_others_are_left_alone(hf_bert, one_error_line, interrupted, output, tmp_path):
    """A newer output, a link, and what no interrupted run wrote beside it."""
    beside = output.with_name("vectors.npy.parts")
    parts = sorted(beside.iterdir())
    output.write_bytes(b"mine")
    one_error_line(hf_bert(*interrupted), "exists", "--overwrite")
    assert output.read_bytes() == b"mine" and sorted(beside.iterdir()) == parts
    output.unlink()
    output.symlink_to(tmp_path / "none")
    one_error_line(hf_bert(*interrupted), "exists", "--overwrite")
    assert output.is_symlink()
    output.unlink()
    shutil.rmtree(beside)
    beside.write_text("mine")
    one_error_line(hf_bert(*interrupted, "--overwrite"), "vectors.npy.parts is a file")
    beside.unlink()
    beside.mkdir()
    (beside / "mine").write_text("mine")
    one_error_line(hf_bert(*interrupted, "--overwrite"), "no job has written")
    assert (beside / "mine").read_text() == "mine"


@pytest.mark.parametrize("ending", ["", ".rejects.jsonl"])
@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_the_texts_are_no_output(
    hf_bert, one_error_line, model, lines, output, monkeypatch, ending, link
):
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
