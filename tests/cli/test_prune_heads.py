"""`hf-bert prune-heads`: importance, scores before and after, and the folder that it leaves."""

import json

import pytest
import torch

import hf_bert_impl

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
    return ("--data", file, "--text-column", 0, "--label-column", 1)


@pytest.fixture
def texts(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"{text} {text}\n" for text, _ in LINES))
    return file


def logits(folder, name="BertForSequenceClassification", **options):
    model = getattr(hf_bert_impl, name).from_pretrained(folder).eval()
    with torch.no_grad():
        return model(torch.tensor([[2, 5, 6, 7, 3]]), **options).logits


def test_prunes_and_saves(hf_bert, save_tiny, labelled, tmp_path):
    folder, output = save_tiny("BertForSequenceClassification"), tmp_path / "pruned"
    picture = tmp_path / "heads.png"
    options = ("--count", 4, "--output", output, "--picture", picture, "--json")
    result = hf_bert("prune-heads", folder, *labelled, *options)
    assert (result.status, result.err) == (0, "")
    report = json.loads(result.out)
    assert report["task"] == "classification"
    assert (report["examples"], report["heads"]) == (6, HEADS)
    assert sum(map(len, report["pruned"].values())) == 4
    assert report["before"].keys() == report["after"].keys() >= {"accuracy", "f1"}
    for row in report["normalized"]:
        assert sum(score**2 for score in row) == pytest.approx(1)
    # The least important ones are gone.
    scores = {
        (layer, head): x
        for layer, row in enumerate(report["normalized"])
        for head, x in enumerate(row)
    }
    gone = {(int(layer), head) for layer, heads in report["pruned"].items() for head in heads}
    assert max(scores[place] for place in gone) <= min(
        score for place, score in scores.items() if place not in gone
    )
    assert json.loads((output / "head_importance.json").read_text()) == report
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
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_pruned_again(hf_bert, save_tiny, labelled, tmp_path):
    """What was pruned can be pruned further, by the same numbers."""
    folder = save_tiny("BertForSequenceClassification")
    first, second = tmp_path / "first", tmp_path / "second"
    assert hf_bert("prune-heads", folder, *labelled, "--count", 3, "-o", first).status == 0
    result = hf_bert("prune-heads", first, *labelled, "--share", 0.3, "-o", second, "--json")
    report = json.loads(result.out)
    assert report["heads"] == 7
    assert sum(row.count(None) for row in report["importance"]) == 3
    config = hf_bert_impl.BertConfig.from_pretrained(second)
    assert sum(map(len, config.pruned_heads.values())) == 5  # 3 and 30 % of 7


def test_table(hf_bert, save_tiny, labelled):
    result = hf_bert(
        "prune-heads",
        save_tiny("BertForSequenceClassification"),
        *labelled,
        "--share",
        0.25,
        "--limit",
        3,
    )
    assert (result.status, result.err) == (0, "")
    assert "3 examples" in result.out
    assert "* pruned: 2 of 10 heads" in result.out
    assert sum(line.count("*") for line in result.out.splitlines()) == 3
    assert "accuracy" in result.out
    assert "before" in result.out


def test_only_importance(hf_bert, save_tiny, labelled, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    folder = save_tiny("BertForSequenceClassification")
    result = hf_bert("prune-heads", folder, *labelled, "--json")
    report = json.loads(result.out)
    assert report["pruned"] == {}
    assert "before" not in report
    assert {path for path in tmp_path.rglob("*") if folder not in (path, *path.parents)} == set(
        before
    )


def test_a_tokenizer_that_tells_no_token_types(hf_bert, save_tiny, texts, tmp_path):
    folder = save_tiny("BertForMaskedLM")
    file = folder / "tokenizer_config.json"
    fields = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps(fields | {"model_input_names": ["input_ids", "attention_mask"]}))
    result = hf_bert("prune-heads", folder, "--data", texts, "--quiet", "--json")
    assert (result.status, result.err) == (0, "")


def test_masked_words(hf_bert, save_tiny, texts, tmp_path):
    """A pre-training checkpoint keeps both of its heads, and its dtype."""
    folder, output = save_tiny("BertForPreTraining"), tmp_path / "pruned"
    model = hf_bert_impl.BertForPreTraining.from_pretrained(folder)
    model.to(torch.bfloat16).save_pretrained(folder)
    options = ("--data", texts, "--count", 2, "-o", output, "--json", "--quiet")
    result = hf_bert("prune-heads", folder, *options)
    assert (result.status, result.err) == (0, "")
    report = json.loads(result.out)
    assert report["task"] == "masked-lm"
    assert report["before"]["loss"] > 0
    assert report["before"] != report["after"]
    again, info = hf_bert_impl.BertForPreTraining.from_pretrained(output, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert again.dtype == torch.bfloat16
    assert again.config.architectures == ["BertForPreTraining"]


def test_scores_are_of_the_test_data(hf_bert, save_tiny, labelled, tmp_path):
    test = tmp_path / "test.tsv"
    test.write_text("nice\t1\nthe night\t0\n")
    folder = save_tiny("BertForSequenceClassification")
    result = hf_bert("prune-heads", folder, *labelled, "--test", test, "--count", 1, "--json")
    report = json.loads(result.out)
    assert report["examples"] == 6
    assert report["before"]["accuracy"] in (0, 0.5, 1)
    assert report["test"] == str(test)


def test_nothing_is_replaced_unasked(hf_bert, one_error_line, save_tiny, labelled, tmp_path):
    folder, output = save_tiny("BertForSequenceClassification"), tmp_path / "pruned"
    output.mkdir()
    (output / "mine.txt").write_text("mine")
    command = ("prune-heads", folder, *labelled, "--count", 1, "-o")
    one_error_line(hf_bert(*command, output), "has files in it", "--overwrite")
    one_error_line(hf_bert(*command, folder, "--overwrite"), "would replace its own source")
    file = tmp_path / "file"
    file.write_text("mine")
    one_error_line(hf_bert(*command, file), "is a file")
    assert (output / "mine.txt").read_text() == file.read_text() == "mine"
    assert hf_bert(*command, output, "--overwrite").status == 0
    assert logits(output).shape == (1, 2)


@pytest.mark.parametrize(
    "options, words",
    [
        (("--count", 9), "9 heads are to be removed of 10; expected 1 to 8"),
        (("--count", 0), "0 heads are to be removed"),
        (("--share", 1), "--share is 1; expected more than 0 and less than 1"),
        (("--share", 0.04), "--share is 0.04, which of 10 heads is none"),
        (("--share", 0.5, "--count", 2), "both given"),
        (("--share", 0.95), "expected 1 to 8"),
        (("--output", "new"), "--output is new, and there is nothing to remove"),
        (("--count", 1, "--picture", "heads.jpg"), "ends in"),
        (("--count", 1, "--max-length", 99), "--max-length is 99"),
    ],
)
def test_bad_options(
    hf_bert, one_error_line, save_tiny, labelled, tmp_path, monkeypatch, options, words
):
    monkeypatch.chdir(tmp_path)
    folder = save_tiny("BertForSequenceClassification")
    one_error_line(hf_bert("prune-heads", folder, *labelled, *options), words)
    assert not (tmp_path / "new").exists()


def test_bad_models(hf_bert, one_error_line, save_tiny, labelled):
    result = hf_bert("prune-heads", save_tiny("BertModel"), *labelled)
    one_error_line(result, "is a BertModel", "fine-tune it")
    result = hf_bert("prune-heads", save_tiny("BertLMHeadModel", is_decoder=True), *labelled)
    one_error_line(result, "is a BertLMHeadModel")


def test_bad_data(hf_bert, one_error_line, save_tiny, labelled, tmp_path):
    folder = save_tiny("BertForSequenceClassification")
    result = hf_bert("prune-heads", folder, "--data", tmp_path / "none.tsv")
    one_error_line(result, "there is no file")
    (tmp_path / "data.tsv").write_text("nice\tthird\n")
    one_error_line(hf_bert("prune-heads", folder, *labelled), "has the label 'third'")
