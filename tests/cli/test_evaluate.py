"""`hf-bert evaluate`: similarity, probes, SentEval, tags, numbers and masked words."""

import json
import math

import pytest
import torch
from transformers.models.bert import modeling_bert

import hf_bert_impl
from hf_bert_impl.inference import packed_loop
from hf_bert_impl.tasks import base, pseudo_perplexity
from tests.cli.cases import LABELS, RUNS, options_of


def test_sts(hf_bert, write, save_tiny, tmp_path):
    folder = write("sts/a.tsv", "5\tnice\tnice\n1\tthe river\tnight\n").parent
    write("sts/b.tsv", "3\tto meet you\tmeet you\n\tno gold\tnice\n")
    model, picture = save_tiny("BertModel"), tmp_path / "sts.svg"
    found = {}
    for pooling in ("cls", "mean", "max", "first-last-average"):
        command = ("evaluate", "sts", model, folder, "--pooling", pooling)
        found[pooling] = hf_bert(*command, "--json", "--plot", picture).report
        assert found[pooling]["pairs"] == 3
        assert found[pooling]["files"]["a.tsv"]["spearman"] == pytest.approx(100)
    assert len({entry["pearson"] for entry in found.values()}) == 4
    assert b"<svg" in picture.read_bytes()
    table = hf_bert("evaluate", "sts", model, folder).printed
    assert f"{found['mean']['spearman']:.2f}" in table


def test_probe(hf_bert, place):
    command = ("evaluate", "probe", "BertModel", "labels.tsv", *LABELS.split())
    found = hf_bert(*command, "--test", "labels.tsv", "--json", "--plot", "probe.png").report
    assert found["accuracy"] > 0.9
    assert found["examples"] == {"train": 12, "test": 12}
    assert (place / "probe.png").is_file()
    assert "mean of 3 folds" in hf_bert(*command, "--folds", 3).printed


def test_senteval(hf_bert, place):
    command = "evaluate senteval BertModel senteval --folds 2 --tasks MR,TREC,MRPC,STS-B,STS16"
    printed = hf_bert(*command.split(), "-o", "new/out.json").printed
    found = json.loads((place / "new/out.json").read_text())
    assert found["tasks"]["MRPC"]["examples"] == {"train": 90, "test": 31}
    for name, scores in found["tasks"].items():
        (line,) = (line for line in printed.splitlines() if line.split()[:1] == [name])
        assert f"{scores[scores['metric']]:.1f}" in line
    accuracies = [it["accuracy"] for it in found["tasks"].values() if it["metric"] == "accuracy"]
    assert len(accuracies) == 3
    assert found["mean"]["accuracy"] == pytest.approx(sum(accuracies) / 3)


def by_definition(folder, texts, kind):
    """The losses of all tokens, each hidden alone, and which are predicted; tokens of one type."""
    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(folder)
    model = modeling_bert.BertForMaskedLM.from_pretrained(folder).eval()
    losses, right = [], []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        for place, gold in enumerate(ids[0].tolist()):
            if gold in tokenizer.all_special_ids:
                continue
            hidden, labels = ids.clone(), torch.full_like(ids, -100)
            hidden[0, place], labels[0, place] = tokenizer.mask_token_id, gold
            output = model(hidden, token_type_ids=torch.full_like(ids, kind), labels=labels)
            losses.append(output.loss.item())
            right.append(output.logits[0, place].argmax() == gold)
    return math.exp(sum(losses) / len(losses)), sum(right)


def test_masked_lm_is_the_formula(hf_bert, write, save_tiny, monkeypatch):
    folder, texts = save_tiny(), ["nice to meet you", "the river rose, xyz over night"]
    command = ("evaluate", "masked-lm", folder, write("a.txt", "\n".join(texts)), "--json")
    found = hf_bert(*command).report
    (expected, right), (of_ones, _) = (by_definition(folder, texts, kind) for kind in (0, 1))
    assert found["pseudo_perplexity"] == pytest.approx(expected, rel=1e-5)
    assert found["accuracy"] == pytest.approx(right / 10)
    assert (found["tokens"], found["texts"], found["cut"]) == (4 + 6, 2, 0)
    # Long texts are cut, and a limit counts texts.
    file = write("a.jsonl", "\n".join(json.dumps({"text": "nice " * n}) for n in (29, 30, 1)))
    long = ("evaluate", "masked-lm", folder, file, "--json", "--quiet")
    found = hf_bert(*long).report
    assert (found["tokens"], found["texts"], found["cut"]) == (59, 3, 1)
    assert hf_bert(*long, "--limit", 1).report["tokens"] == 29
    # The tokenizer gives the token types: 1 in codertimo's BERT.
    call = hf_bert_impl.BertTokenizer.__call__

    def ones(self, *arguments, **options):
        encoded = call(self, *arguments, **options)
        return {**encoded, "token_type_ids": [1] * len(encoded["input_ids"])}

    monkeypatch.setattr(hf_bert_impl.BertTokenizer, "__call__", ones)
    score = hf_bert(*command).report["pseudo_perplexity"]
    assert score == pytest.approx(of_ones, rel=1e-5) != pytest.approx(expected, rel=1e-3)


WORDS = ["nice", "to meet you", "the river rose over night", "a", "and you", "over the river " * 9]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("evaluate sts", "{n}\t{word}\tnice {word}"),
        ("evaluate regression", "{n}\t{word}"),
        ("evaluate masked-lm", "{word}"),
    ],
)
def test_batch_invariant(hf_bert, place, monkeypatch, name, line):
    """Figures have the same bits in any order of the data and for any size of batches."""
    lines = [line.format(n=7 * n % 5, word=word) for n, word in enumerate(WORDS)]
    command, figures = RUNS[name].split(), []
    for budget, order in ((8192, lines), (8192, lines[::-1]), (40, lines)):
        for module in (packed_loop, base, pseudo_perplexity):
            monkeypatch.setattr(module, "TOKEN_BUDGET", budget)
        (place / command[3]).write_text("\n".join(order) + "\n")
        figures.append(hf_bert(*command, "--batch-invariant", "--json").printed)
    assert figures[0] == figures[1] == figures[2]


@pytest.mark.parametrize(
    "name", [it for it in RUNS if it != "verify" and "--batch-invariant" in options_of(it)]
)
def test_batch_invariance_reaches_the_model(hf_bert, place, monkeypatch, name):
    asked, encode = set(), hf_bert_impl.BertModel._encode

    def remember(model, *arguments, **options):
        asked.add(model.config.batch_invariant)
        return encode(model, *arguments, **options)

    monkeypatch.setattr(hf_bert_impl.BertModel, "_encode", remember)
    for option in ((), ("--batch-invariant",)):
        asked.clear()
        more = ("--overwrite",) if "new/out" in RUNS[name] else ()
        assert hf_bert(*RUNS[name].split(), *option, *more).status == 0
        assert asked == {bool(option)}
