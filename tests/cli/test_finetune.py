"""`hf-bert finetune` and `hf-bert evaluate`: from files to figures on the command line."""

import json
import random

import pytest

import hf_bert_impl
from hf_bert_impl.training import finetuning


@pytest.fixture
def data(write):
    """Sentences that "nice" or "river" decides: a header, columns of text and label."""
    chance, lines = random.Random(1), ["id\tsentence\tmood\n"]
    for number in range(64):
        word = chance.choice(["nice", "river"])
        words = [
            word,
            *chance.choices(["to", "you", "the", "night", "and"], k=chance.randint(1, 6)),
        ]
        chance.shuffle(words)
        lines.append(f"{number}\t{' '.join(words)}\t{word}\n")
    return write("data.tsv", "".join(lines))


@pytest.fixture
def arguments(save_tiny, data, tmp_path):
    return (
        *("finetune", save_tiny("BertModel"), data, "--task", "classification"),
        *("--validation", data, "--test", data, "--text-column", "sentence"),
        *("--label-column", "mood", "--output", tmp_path / "out", "--epochs", 4),
        *("--batch-size", 8, "--learning-rate", 3e-3, "--seed", 3, "--max-length", 20),
    )


def test_finetune_and_evaluate(hf_bert, arguments, data, tmp_path):
    report = hf_bert(*arguments, "--json").report
    assert report == json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert report["test"]["accuracy"] > 0.9
    assert report["training"]["seed"] == 3
    assert report["training"]["max_length"] == 20

    picture = tmp_path / "matrix.png"
    columns = ("--text-column", "sentence", "--label-column", "mood")
    evaluate = ("evaluate", "classification", tmp_path / "out", data, *columns)
    found = hf_bert(*evaluate, "--json", "--plot", picture).report
    assert found.pop("examples") == 64
    assert found.pop("task") == "classification"
    assert found == pytest.approx(report["test"])
    assert picture.read_bytes().startswith(b"\x89PNG")

    assert f"{found['accuracy']:.4f}" in hf_bert(*evaluate).printed


def test_table_shows_the_spread(hf_bert, arguments, tmp_path):
    result = hf_bert(*arguments, "--seed", 4, "--epochs", 0.5)
    assert result.status == 0, result.err
    for words in ("accuracy", "±", "64 training examples"):
        assert words in result.out
    model = hf_bert_impl.BertForSequenceClassification.from_pretrained(tmp_path / "out")
    assert model.config.id2label == {0: "nice", 1: "river"}
    status, out, err = hf_bert(*arguments, "--quiet", "--epochs", 0.2, "--overwrite")
    assert (status, out) == (0, "")
    for part, line in zip(("validation", "test"), err.splitlines(), strict=True):
        assert line.startswith(f"note: all 64 {part} examples are training examples too. Their ")


def test_an_interrupted_run_on_glue(hf_bert, arguments, tmp_path, monkeypatch):
    """Its validation data have a name of their own; what is left can be resumed."""

    def stop(task, sources, *_):
        assert sources.validation == "validation_matched"
        (tmp_path / "out.unfinished").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(finetuning, "finetune", stop)
    result = hf_bert(*arguments[:2], "--task", "mnli", "--output", tmp_path / "out")
    assert "run the same command with --resume" in result.err
