"""`hf-bert prune-heads`: what it prints, draws and leaves alone."""

import json

import pytest

from hf_bert_impl import BertConfig

pytest.importorskip("sklearn")
LINES = "nice to meet you\t1\nthe river rose over night\t0\na nice night\t1\nthe river\t0\n"


@pytest.fixture
def command(save_tiny, tmp_path):
    file = tmp_path / "data.tsv"
    file.write_text(LINES)
    folder = save_tiny("BertForSequenceClassification")
    columns = ("--text-column", 0, "--label-column", 1)
    return ("prune-heads", folder, "--data", file, *columns)


def test_json_picture_and_folder(hf_bert, command, tmp_path):
    output, picture = tmp_path / "pruned", tmp_path / "heads.png"
    options = ("--count", 4, "--output", output, "--picture", picture, "--json", "--quiet")
    result = hf_bert(*command, *options)
    assert (result.status, result.err) == (0, "")
    report = json.loads(result.out)
    assert json.loads((output / "head_importance.json").read_text()) == report
    pruned = BertConfig.from_pretrained(output).pruned_heads
    assert {int(layer): heads for layer, heads in report["pruned"].items()} == pruned
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_table(hf_bert, command):
    result = hf_bert(*command, "--share", 0.25, "--limit", 3)
    assert (result.status, result.err) == (0, "")
    assert "3 examples" in result.out
    assert "* pruned: 2 of 10 heads" in result.out
    assert sum(line.count("*") for line in result.out.splitlines()) == 3
    assert "accuracy" in result.out
    assert "before" in result.out


def test_nothing_is_replaced_unasked(hf_bert, one_error_line, command, tmp_path):
    output = tmp_path / "pruned"
    output.mkdir()
    (output / "mine.txt").write_text("mine")
    command = (*command, "--count", 1, "-o")
    one_error_line(hf_bert(*command, output), "has files in it", "--overwrite")
    one_error_line(hf_bert(*command, command[1], "--overwrite"), "would replace its own source")
    assert (output / "mine.txt").read_text() == "mine"
    assert hf_bert(*command, output, "--overwrite").status == 0
    assert (output / "config.json").is_file()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--share", 1), "--share is 1; expected more than 0 and less than 1"),
        (("--output", "new"), "--output is new, and there is nothing to remove"),
        (("--count", 1, "--picture", "heads.jpg"), "ends in"),
        (("--count", 1, "--max-length", 99), "--max-length is 99"),
    ],
)
def test_bad_options(hf_bert, one_error_line, command, tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    one_error_line(hf_bert(*command, *options), words)
    assert not (tmp_path / "new").exists()
