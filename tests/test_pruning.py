"""A checkpoint without its least important heads: what is measured, removed and written."""

import json

import pytest
import torch

import hf_bert_impl
from hf_bert_impl.checkpoints import open_checkpoint
from hf_bert_impl.errors import InputError
from hf_bert_impl.pruning import prune_checkpoint
from hf_bert_impl.tasks.base import Columns

pytest.importorskip("sklearn")
LINES = [
    ("nice to meet you", "1"),
    ("the river rose over night", "0"),
    ("a nice night", "1"),
    ("the river", "0"),
    ("you and the river", "0"),
    ("nice , nice .", "1"),
]
HEADS = 10


@pytest.fixture
def labelled(tmp_path):
    file = tmp_path / "data.tsv"
    file.write_text("".join(f"{text}\t{label}\n" for text, label in LINES))
    return {"data": str(file), "columns": Columns("0", None, "1")}


@pytest.fixture
def texts(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"{text} {text}\n" for text, _ in LINES))
    return {"data": str(file)}


def prune(folder, **options):
    return prune_checkpoint(open_checkpoint(str(folder)), **options)


def logits(folder, name="BertForSequenceClassification", **options):
    model = getattr(hf_bert_impl, name).from_pretrained(folder).eval()
    with torch.no_grad():
        return model(torch.tensor([[2, 5, 6, 7, 3]]), **options).logits


def test_the_least_important_go(save_tiny, labelled, tmp_path):
    folder, output = save_tiny("BertForSequenceClassification"), tmp_path / "pruned"
    result = prune(folder, **labelled, count=4, output=output)
    report = result.report
    assert report["task"] == "classification"
    assert (report["examples"], report["heads"], result.test_examples) == (6, HEADS, 6)
    assert report["before"].keys() == report["after"].keys() >= {"accuracy", "f1"}
    for row in report["normalized"]:
        assert sum(score**2 for score in row) == pytest.approx(1)
    gone = {(layer, head) for layer, heads in result.pruned.items() for head in heads}
    assert len(gone) == 4
    rows = enumerate(report["normalized"])
    places = [(score, (layer, n)) for layer, row in rows for n, score in enumerate(row)]
    assert {place for _, place in sorted(places)[:4]} == gone
    written = json.loads((output / "head_importance.json").read_text())
    assert {int(layer): heads for layer, heads in written["pruned"].items()} == result.pruned
    assert {**written, "pruned": 0} == {**report, "pruned": 0}
    card = (output / "README.md").read_text()
    assert f"{len(gone)} attention heads of {folder.name} are pruned" in card
    assert str(folder.parent) not in card
    # The folder is the model without them.
    mask = torch.ones(2, 5)
    for layer, head in gone:
        mask[layer, head] = 0
    masked = logits(folder, head_mask=mask)
    assert torch.allclose(logits(output), masked, atol=1e-5)
    assert not torch.allclose(logits(folder), masked, atol=1e-3)
    assert hf_bert_impl.BertTokenizer.from_pretrained(output).tokenize("nice") == ["nice"]


def test_pruned_again(save_tiny, labelled, tmp_path):
    """What was pruned can be pruned further, by the same numbers."""
    first, second, test = (tmp_path / name for name in ("first", "second", "test.tsv"))
    test.write_text("nice\t1\nthe night\t0\n")
    folder = save_tiny("BertForSequenceClassification")
    result = prune(folder, **labelled, test=str(test), count=3, output=first)
    assert (result.report["examples"], result.test_examples) == (6, 2)
    assert result.report["before"]["accuracy"] in (0, 0.5, 1)
    report = prune(first, **labelled, share=0.3, output=second).report
    assert report["heads"] == 7
    assert sum(row.count(None) for row in report["importance"]) == 3
    config = hf_bert_impl.BertConfig.from_pretrained(second)
    assert sum(map(len, config.pruned_heads.values())) == 5  # 3 and 30 % of 7


def test_masked_words(save_tiny, texts, tmp_path):
    """A pre-training checkpoint keeps both of its heads, and its dtype."""
    folder, output = save_tiny("BertForPreTraining"), tmp_path / "pruned"
    model = hf_bert_impl.BertForPreTraining.from_pretrained(folder)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(folder)
    tokenizer.model_input_names = ["input_ids", "attention_mask"]  # no token types
    tokenizer.save_pretrained(folder)
    report = prune(folder, **texts, count=2, output=output).report
    assert report["task"] == "masked-lm"
    assert report["before"]["loss"] > 0
    assert report["before"] != report["after"]
    again, info = hf_bert_impl.BertForPreTraining.from_pretrained(output, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert again.dtype == torch.bfloat16
    assert again.config.architectures == ["BertForPreTraining"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"count": 9}, "9 heads are to be removed of 10; expected 1 to 8"),
        ({"share": 1}, "`share` is 1; expected more than 0 and less than 1"),
        ({"share": 0.04}, "`share` is 0.04, which of 10 heads is none"),
        ({"share": 0.5, "count": 2}, "both given"),
        ({"output": "new"}, "`output` is .*new, and there is nothing to remove"),
        ({"count": 1, "max_length": 99}, "max_length is 99; expected 5 to 31"),
    ],
)
def test_bad_options(save_tiny, labelled, tmp_path, options, words):
    if "output" in options:
        options = {"output": tmp_path / "new"}
    with pytest.raises(InputError, match=words):
        prune(save_tiny("BertForSequenceClassification"), **labelled, **options)
    assert not (tmp_path / "new").exists()
