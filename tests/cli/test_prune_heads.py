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
