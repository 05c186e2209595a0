"""`hf-bert embed`: no work is lost when it is killed, and files of others are left alone."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from pyarrow.parquet import read_table

from hf_bert_impl.distributed import job as jobs
from hf_bert_impl.distributed.job import Job
from tests.cli.embed.cases import LINES, assert_complete, expected, give_input, json_lines

SECONDS_TO_START = 120
KILLS = 10
#: Runs a command in a process of its own for each line of arguments. It is forked from one that has
#: run the first command itself: what that one imports takes longer than the command.
FORKING = """
import json, os, sys, threading
from tqdm import tqdm
from hf_bert_impl.cli import main
tqdm.set_lock(threading.RLock())  # its own is shared with forks: a killed one may hold it for ever
print(main(json.loads(sys.stdin.readline())), flush=True)
for line in sys.stdin:
    process = os.fork()
    if not process:
        os._exit(main(json.loads(line)))
    print(process, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


@pytest.fixture
def started():
    """Starts a command in a process of its own; gives its number, and what waits for its status.

    The first one is run to its end and gives its status.
    """
    # No threads, of which a fork has none.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with subprocess.Popen(
        [sys.executable, "-c", FORKING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as parent:

        def start(*command):
            parent.stdin.write(json.dumps([str(word) for word in command]) + "\n")
            parent.stdin.flush()
            first = int(parent.stdout.readline())
            return first, lambda: int(parent.stdout.readline())

        yield start


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows cannot fork")
@pytest.mark.parametrize("name", ["vectors.npy", "vectors.parquet", "vectors"])
def test_killed_ten_times(started, model, tmp_path, output, name):
    """At random moments: each row once, in the bytes of a run without an interruption."""
    draw = random.Random(name)
    texts = [f"the river rose and {'you ' * draw.randrange(12)}" for _ in range(300)]
    file = tmp_path / "a.jsonl"
    rows = json_lines(texts, "text").replace('"text": "the river rose and you "', '"text": null')
    file.write_text(rows)
    output, whole = output.with_name(name), tmp_path / name
    options = ["--part-size", "2", "--quiet"]
    options += [] if name.endswith(".npy") else ["--id-column", "id"]
    assert started("embed", model, file, "-o", whole, *options)[0] == 0

    folder = output if name == "vectors" else output.with_name(f"{name}.parts")
    ending = "npy" if name.endswith(".npy") else "parquet"
    for _ in range(KILLS):
        process, status = started("embed", model, file, "-o", output, *options)
        until = len([*folder.glob(f"part-*.{ending}")]) + draw.randrange(10)
        end, pause = time.monotonic() + SECONDS_TO_START, draw.random() / 20
        while len([*folder.glob(f"part-*.{ending}")]) < until and time.monotonic() < end:
            time.sleep(0.002)
        time.sleep(pause)
        os.kill(process, signal.SIGKILL)
        assert status() == -signal.SIGKILL
    done = {file: file.stat().st_mtime_ns for file in folder.glob(f"part-*.{ending}")}
    assert 0 < len(done) < len(texts) / 2
    assert started("embed", model, file, "-o", output, *options)[1]() == 0

    if name == "vectors":
        assert {file: file.stat().st_mtime_ns for file in done} == done  # none was made again
        compared = [file.name for file in whole.glob("*.parquet")]
        assert len(compared) == len([*output.glob("part-*.parquet")]) == len(texts) / 2
        assert not [*output.rglob(".partial-*")]
        for part in compared:
            assert (output / part).read_bytes() == (whole / part).read_bytes()
    else:
        assert output.read_bytes() == whole.read_bytes()
    rejects, right = (
        it / "rejects.jsonl" if name == "vectors" else it.with_name(f"{name}.rejects.jsonl")
        for it in (output, whole)
    )
    assert len(rejects.read_text().splitlines()) == rows.count("null") > 0
    assert rejects.read_bytes() == right.read_bytes()
    assert {*output.parent.iterdir()} == {output} | ({rejects} if name != "vectors" else set())
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
def test_the_same_command_resumes(hf_bert, interrupted, model, output, more):
    report = hf_bert(*interrupted, "--json", *more).report
    assert (report["resumed_from"], report["rows"], report["parts"]) == (2, 3, 5)
    assert_complete(output, expected(model))


def test_a_newer_file_of_others_is_not_the_output(hf_bert, one_error_line, interrupted, output):
    output.write_bytes(b"mine")
    parts = sorted(output.with_name("vectors.npy.parts").iterdir())
    one_error_line(hf_bert(*interrupted), "exists", "--overwrite")
    assert output.read_bytes() == b"mine"
    assert sorted(output.with_name("vectors.npy.parts").iterdir()) == parts


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


@pytest.mark.parametrize("left", ["", ".partial-x", "_job.json"])
def test_killed_while_the_folder_is_made_or_removed(hf_bert, interrupted, model, output, left):
    """The command resumes from any remains."""
    folder = output.with_name("vectors.npy.parts")
    settings = (folder / "_job.json").read_bytes()
    shutil.rmtree(folder)
    folder.mkdir()
    if left == "_job.json":
        (folder / left).write_bytes(settings)
    elif left:
        (folder / left).mkdir()
    assert hf_bert(*interrupted).status == 0
    assert_complete(output, expected(model))


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


def test_files_of_others_are_left_alone(hf_bert, one_error_line, model, lines, output, tmp_path):
    """Files that no interrupted run wrote."""
    command, beside = ("embed", model, lines, "-o", output), output.with_name("vectors.npy.parts")
    beside.write_text("mine")
    one_error_line(hf_bert(*command, "--overwrite"), "vectors.npy.parts is a file")
    beside.unlink()
    beside.mkdir()
    (beside / "mine").write_text("mine")
    one_error_line(hf_bert(*command, "--overwrite"), "no job has written")
    assert (beside / "mine").read_text() == "mine"
    output.symlink_to(tmp_path / "none")
    one_error_line(hf_bert(*command), "exists", "--overwrite")
    assert output.is_symlink()


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
