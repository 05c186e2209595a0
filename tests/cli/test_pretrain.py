"""`hf-bert pretrain`: text and sizes in, a model out."""

import json

import pytest

from hf_bert_impl import BertForMaskedLM, BertForPreTraining
from tests.support.checkpoints import SPECIAL_TOKENS

WORDS = ("nice", "to", "meet", "you", "the", "river", "rose")


@pytest.fixture
def place(tmp_path):
    lines = [" ".join(WORDS[n % 5 : n % 5 + 3]) for n in range(60)]
    blocks = ["\n".join(lines[n : n + 4]) for n in range(0, 60, 4)]
    (tmp_path / "text.txt").write_text("\n\n".join(blocks) + "\n")
    (tmp_path / "vocab.txt").write_text("\n".join((*SPECIAL_TOKENS, *WORDS)) + "\n")
    return tmp_path


@pytest.fixture
def run(hf_bert, place):
    def run(*options, files=("text.txt",), output="made", settings=""):
        (place / "run.yaml").write_text(f"cache_dir: {place}/c\n{settings}")
        sizes = ("--layers", 1, "--hidden-size", 20, "--heads", 5, "--intermediate-size", 28)
        small = ("--max-length", 16, "--batch-size", 4, "--max-steps", 4)
        return hf_bert(
            *("pretrain", *(place / file for file in files), "--output", place / output),
            *("--tokenizer", place, "--config", place / "run.yaml", *sizes, *small, *options),
        )

    return run


def test_table_and_lines(run, place):
    result = run("--validation-share", 0.2, settings="logging_steps: 2")
    words = result.words
    for name in ("4 steps", "mlm loss", "nsp accuracy", "perplexity", "unigram entropy"):
        assert name in words
    lines = result.err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["step 2/4", "step 4/4", "step 4/4"]
    assert "tokens/s" in lines[0]
    assert lines[2].startswith("step 4/4: held out: mlm")
    assert BertForPreTraining.from_pretrained(place / "made").config.num_hidden_layers == 1


def test_json_and_resume(run, place):
    settings = "masking: whole-word\npacking: true"
    result = run("--objective", "mlm", "--json", "--quiet", settings=settings)
    report = result.report
    assert result.err == ""
    assert report["steps"] == 4
    assert report["training"]["mlm_loss"] > 0
    assert report["validation"] == {}
    assert report["statistics"]["random_pairs"] is None
    BertForMaskedLM.from_pretrained(place / "made")
    again = run("--objective", "mlm", "--resume", "--json", settings=settings)
    assert json.loads(again.out)["training"] == report["training"]
    assert run("--objective", "mlm", "--resume", "-q", settings=settings) == (0, "", "")
