"""`hf-bert embed`: no work is lost when it is killed, and files of others are left alone."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from hf_bert_impl import BertModel
from hf_bert_impl.data import vector_file
from hf_bert_impl.model.kernels import why_no_kernels
from tests.cli.embed.cases import LINES, WIDTH, assert_complete, expected, give_input, json_lines

SECONDS_TO_START = 60
RUN = "import sys; from hf_bert_impl.cli import main; sys.exit(main())"


def run_and_kill(command, texts, output):
    """Starts a run, kills it without warning while it waits for more texts; gives its rows."""
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    progress = output.with_name(output.name + ".progress.json")
    try:
        process.stdin.write(("\n".join(texts) + "\n").encode())
        process.stdin.flush()
        end = time.monotonic() + SECONDS_TO_START
        while not progress.exists():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.05)
        return json.loads(progress.read_text())["rows"]
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.slow
@pytest.mark.skipif(why_no_kernels(torch.float32) is not None, reason="torch lacks oneDNN")
def test_killed_and_resumed(hf_bert, model, output, monkeypatch):
    """To the same bytes as without an interruption, with any token budget, killed anywhere."""
    output, draw = output.with_name("vectors.parquet"), random.Random(2)
    texts = [f"the river rose and {'you ' * draw.randrange(12)}" for _ in range(1500)]
    texts = json_lines(texts, "text").splitlines()
    options = ("--precision", "int8", "--part-size", "401", "--column", "text", "--id-column", "id")

    def content(path):
        return [file.read_bytes() for file in sorted(path.iterdir())]

    def command(target, budget):
        return (
            *("embed", str(model), "-", "-o", str(target), "--batch-invariant", "--json"),
            *("--batch-tokens", str(budget)),
            *options,
        )

    whole = output.with_name(f"whole{output.suffix}")
    give_input(monkeypatch, texts)
    assert hf_bert(*command(whole, 4096)).status == 0
    killed = draw.randrange(700, 1400)
    rows = run_and_kill(command(output, draw.choice([31, 64, 200])), texts[:killed], output)
    give_input(monkeypatch, texts)
    result = hf_bert(*command(output, draw.choice([33, 500])))
    assert result.status == 0, result.err
    assert 0 < rows <= killed and json.loads(result.out)["resumed_from"] == rows
    assert content(output) == content(whole)
    assert sorted(output.parent.iterdir()) == sorted((output, whole))


@pytest.fixture
def interrupted(hf_bert, model, lines, output, monkeypatch):
    """A run that an interrupt ended after two of five texts, as arguments to go on with."""
    append = vector_file.VectorFile.append

    def stop_at_two(self, texts, vectors):
        if self.rows == 2:
            raise KeyboardInterrupt
        append(self, texts, vectors)

    arguments = ("embed", model, lines, "-o", output, "--batch-tokens", 1)
    with monkeypatch.context() as patch:
        patch.setattr(vector_file.VectorFile, "append", stop_at_two)
        result = hf_bert(*arguments)
    assert result.status == 130
    assert result.err == "stopped after 2 texts; the same command goes on from there\n"
    assert not output.exists()
    return arguments


def test_interrupted_and_resumed(hf_bert, interrupted, model, output):
    with output.with_name("vectors.npy.partial").open("ab") as file:
        file.write(b"\x01" * (WIDTH * 4 + 17))  # a row and a piece that no checkpoint counted
    result = hf_bert(*interrupted, "--json")
    assert result.status == 0, result.err
    assert json.loads(result.out)["resumed_from"] == 2
    assert_complete(output, expected(model))


def test_resuming_with_other_texts(hf_bert, one_error_line, interrupted, lines, output, model):
    text = lines.read_text()
    lines.write_text(text.replace("meet", "rose"))
    words = ("the first 2 texts are others now", "delete", "vectors.npy.partial to start anew")
    one_error_line(hf_bert(*interrupted), *words)
    lines.write_text("nice to meet you\n")
    one_error_line(hf_bert(*interrupted), "has 1 texts where 2 were done")
    lines.write_text(text)
    one_error_line(hf_bert(*interrupted, "--normalize"), "its normalize was False, now True")
    # None of these has touched what was done; further texts are welcome.
    with lines.open("a") as file:
        file.write("river\n")
    assert hf_bert(*interrupted).status == 0
    assert_complete(output, expected(model, [*LINES, "river"]))


def test_resuming_with_other_weights(hf_bert, one_error_line, interrupted, model, output):
    other = BertModel.from_pretrained(model)
    other.embeddings.word_embeddings.weight.data.mul_(-1)
    other.save_pretrained(model)
    one_error_line(hf_bert(*interrupted), "the model gives other vectors now")
    output.with_name("vectors.npy.partial").unlink()
    assert hf_bert(*interrupted).status == 0
    assert_complete(output, expected(model))


def test_damaged_leftovers(hf_bert, one_error_line, interrupted, output):
    progress = output.with_name("vectors.npy.progress.json")
    before = progress.read_text()
    for content in ("{", '{"rows": 2}', "[]"):
        progress.write_text(content)
        one_error_line(hf_bert(*interrupted), "progress.json is damaged")
    progress.write_text(before)
    os.truncate(output.with_name("vectors.npy.partial"), 200)
    one_error_line(hf_bert(*interrupted), "is shorter than its 2 rows")


def test_files_of_others_are_left_alone(hf_bert, one_error_line, model, lines, output, tmp_path):
    """What no interrupted run wrote is neither cut off nor written to, nor is what a link names."""
    command, mine = ("embed", model, lines, "-o", output), tmp_path / "mine"
    np.save(tmp_path / "mine.npy", np.ones((3, WIDTH), np.float32))  # the very header of a .partial
    contents = b"mine", (tmp_path / "mine.npy").read_bytes()
    for content, ending, place in [
        (b"", ".partial", os.link),
        *((content, ".progress.json", os.rename) for content in contents),
        *((it, ".partial", how) for it in contents for how in (os.link, os.symlink, os.rename)),
    ]:
        beside = output.with_name(output.name + ending)
        mine.write_bytes(content)
        place(mine, beside)
        one_error_line(hf_bert(*command), beside.name)
        assert beside.read_bytes() == content
        assert [*output.parent.iterdir()] == [beside]
        beside.unlink()
    output.symlink_to(tmp_path / "none")
    one_error_line(hf_bert(*command), "exists", "--overwrite")
    assert output.is_symlink()


def test_killed_before_the_first_rows_counted(hf_bert, model, lines, output):
    beside = output.with_name("vectors.npy.partial")
    beside.write_bytes(vector_file.npy_header(0, WIDTH) + b"\x01" * 200)
    assert hf_bert("embed", model, lines, "-o", output).status == 0
    assert_complete(output, expected(model))


@pytest.mark.parametrize("ending", ["", ".partial", ".progress.json"])
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
    one_error_line(hf_bert(*command), f"the input is in {beside}", "choose another name")
    with source.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        one_error_line(hf_bert("embed", model, "-", *command[3:]), f"the input is in {beside}")
    assert source.read_text() == text
    assert [*output.parent.iterdir()] == [beside]


def test_a_bad_line_costs_no_work(hf_bert, one_error_line, model, tmp_path, output):
    """What was done before it counts, once the line is mended."""
    many = [f"the river rose over night and {'you ' * (n % 11)}" for n in range(700)]
    good = json_lines(many, "text").strip()
    file = tmp_path / "a.jsonl"
    file.write_text(good + "\n{oops\n")
    arguments = ("embed", model, file, "-o", output, "--batch-tokens", 100)
    one_error_line(hf_bert(*arguments), "line 701 of", "is not JSON")
    assert not output.exists()
    file.write_text(good + "\n")
    assert json.loads(hf_bert(*arguments, "--json").out)["resumed_from"] > 0
    assert_complete(output, expected(model, many))
