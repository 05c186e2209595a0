"""`hf-bert pretrain`, `finetune` and `evaluate`: from files to figures on the command line."""

import json

import pytest

import hf_bert_impl
from hf_bert_impl.training import finetuning
from tests.cli.cases import LABELS, RUNS

FINETUNE = (
    *RUNS["finetune"].replace(" -q", "").split(),
    *("--validation", "labels.tsv", "--test", "labels.tsv", "--max-length", 20),
)
PRETRAIN = (*RUNS["pretrain"].replace(" -q", "").split(), "--max-steps", 4)


def test_finetune_and_evaluate(hf_bert, place):
    """As JSON, in tables, and with the spread of two seeds."""
    out, many = place / "new" / "out", ("--epochs", 20, "--learning-rate", 3e-3, "--seed", 3)
    report = hf_bert(*FINETUNE, *many, "--json").report
    assert report == json.loads((out / "metrics.json").read_text())
    assert report["test"]["accuracy"] > 0.9
    assert (report["training"]["seed"], report["training"]["max_length"]) == (3, 20)
    evaluate = ("evaluate", "classification", out, "labels.tsv", *LABELS.split())
    found = hf_bert(*evaluate, "--json", "--plot", "matrix.png").report
    assert (found.pop("examples"), found.pop("task")) == (12, "classification")
    assert found == pytest.approx(report["test"])
    assert (place / "matrix.png").read_bytes().startswith(b"\x89PNG")
    assert f"{found['accuracy']:.4f}" in hf_bert(*evaluate).printed

    table = hf_bert(*FINETUNE, "--seed", 3, "--seed", 4, "--overwrite").printed
    assert all(words in table for words in ("accuracy", "±", "12 training examples"))
    status, printed, err = hf_bert(*FINETUNE, "--quiet", "--overwrite")
    assert (status, printed) == (0, "")
    for part, line in zip(("validation", "test"), err.splitlines(), strict=True):
        assert line.startswith(f"note: all 12 {part} examples are training examples too. Their ")


def test_an_interrupted_run_on_glue(hf_bert, place, monkeypatch):
    """Its validation data have a name of their own; what is left can be resumed."""

    def stop(task, sources, *_):
        assert sources.validation == "validation_matched"
        (place / "out.unfinished").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(finetuning, "finetune", stop)
    result = hf_bert("finetune", "BertModel", "--task", "mnli", "--output", "out")
    assert "run the same command with --resume" in result.err


# --- pre-training ----------------------------------------------------------------------------


def test_pretraining_shows_lines_and_a_table(hf_bert, place):
    settings = "cache_dir: cache\nlogging_steps: 2\nweight_decay: 1e-2\n"
    (place / "run.yaml").write_text(settings + "sizes: {num_hidden_layers: 3}\n")  # with --layers 1
    result = hf_bert(*PRETRAIN, "--validation-share", 0.4)
    for name in ("4 steps", "mlm loss", "nsp accuracy", "perplexity", "unigram entropy"):
        assert name in result.words
    lines = result.err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["step 2/4", "step 4/4", "step 4/4"]
    assert "tokens/s" in lines[0]
    assert lines[2].startswith("step 4/4: held out: mlm")
    assert hf_bert_impl.BertConfig.from_pretrained("new/out").num_hidden_layers == 1


def test_pretraining_as_json_and_resumed(hf_bert, place):
    (place / "run.yaml").write_text("cache_dir: cache\nmasking: whole-word\npacking: true\n")
    command = (*PRETRAIN, "--objective", "mlm", "--batch-size", 1)
    result = hf_bert(*command, "--json", "--quiet")
    report = result.report
    assert result.err == ""
    assert (report["steps"], report["validation"]) == (4, {})
    assert report["training"]["mlm_loss"] > 0
    assert report["statistics"]["random_pairs"] is None
    hf_bert_impl.BertForMaskedLM.from_pretrained(place / "new/out")
    again = hf_bert(*command, "--resume", "--json")
    assert json.loads(again.out)["training"] == report["training"]
    assert hf_bert(*command, "--resume", "-q") == (0, "", "")
