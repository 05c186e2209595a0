"""Fine-tuning: every task learns, and what it leaves can be used."""

import json
import statistics
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.bert import modeling_bert

import hf_bert_impl
from hf_bert_impl.tasks.base import Columns, Split
from hf_bert_impl.tasks.evaluation import evaluate_task, task_for_model
from hf_bert_impl.tasks.registry import make_task
from hf_bert_impl.training import finetuning
from hf_bert_impl.training.data_split import split_examples
from hf_bert_impl.training.finetuning_options import FinetuningOptions
from hf_bert_impl.training.finetuning_trainer import build_trainer, class_weights
from tests.model.cases import rows_through
from tests.support.damage import fields
from tests.training.cases import COLUMNS, NO_DROPOUT, Recipe, task_of

#: Options with which the tiny BERT learns.
QUICK = {"learning_rate": 4e-3, "batch_size": 16, "warmup": 0.0, "pictures": True}


@pytest.mark.parametrize(
    ("name", "epochs", "metric", "is_reached", "labels"),
    [
        ("several labels", 10, "accuracy", lambda it: it > 0.85, ["good", "odd"]),
        ("regression", 5, "pearson", lambda it: it > 0.8, None),
        ("token-classification", 5, "f1", lambda it: it > 0.9, ["O", "B-loc", "B-per", "I-per"]),
        ("multiple-choice", 5, "accuracy", lambda it: it > 0.9, None),
        ("masked-lm", 5, "perplexity", lambda it: it < 7, None),
    ],
)
def test_a_task_learns(run, data, tmp_path, name, epochs, metric, is_reached, labels):
    """Its folder gives the same scores."""
    file, out = data("data", 150, 7), tmp_path / "out"
    sources = {"train": file, "validation": file, "epochs": epochs, "max_length": 31}
    report = run(task_of(name), **sources, **QUICK)
    assert is_reached(report["validation"][metric]), report["validation"]
    assert report.get("labels") == labels
    assert "test" not in report and report["training"]["max_length"] == 31
    assert (out / "training.png").is_file()
    config = hf_bert_impl.BertConfig.from_pretrained(out)
    task = task_for_model(report["task"], config, COLUMNS[name])
    scores, _, _ = evaluate_task(task, out, file, 31)
    assert scores == pytest.approx(report["validation"], abs=1e-6)


def test_regression_begins_with_the_mean(run, data, tmp_path):
    task = task_of("regression")
    run(task, train=data("numbers", 9, 1), validation=None, learning_rate=1e-12)
    scores = [example.label for example in task.read(str(tmp_path / "numbers.jsonl"))]
    model = hf_bert_impl.BertForSequenceClassification.from_pretrained(tmp_path / "out")
    assert model.classifier.bias.item() == pytest.approx(statistics.fmean(scores))


def test_classification(run, data, tmp_path, monkeypatch):
    test, out = data("test", 37, 3), tmp_path / "out"
    task, titles = task_of("classification"), []
    draw = task.draw
    monkeypatch.setattr(type(task), "draw", lambda _, *it: draw(*it) and titles.append(it[-1]))
    report = run(task, train=data("train", 320, 1), test=test, epochs=4, **QUICK)
    assert titles == ["classification: test, 37 examples"]
    assert report["test"]["accuracy"] > 0.9
    assert report["validation"].keys() == report["test"].keys() >= {"accuracy", "f1"}
    assert report["training"]["examples"] == {"train": 320, "validation": 13, "test": 37}
    best = max(report["training"]["history"], key=lambda entry: entry["accuracy"])
    assert report["training"]["best_epoch"] == best["epoch"]
    assert report["validation"]["accuracy"] == best["accuracy"]

    assert json.loads((out / "metrics.json").read_text()) == report
    card = (out / "README.md").read_text()
    assert f"{report['test']['accuracy']:.4g}" in card
    for picture in ("training.png", "predictions.png"):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")
        assert picture in card
    assert not [file.name for file in out.iterdir() if file.is_dir() or file.suffix == ".bin"]

    # Any user of transformers can load it.
    stock = transformers.AutoModelForSequenceClassification.from_pretrained(out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert stock.config.id2label == {0: "B", 1: "G"}
    classify = transformers.pipeline("text-classification", model=stock, tokenizer=tokenizer)
    found = classify(["the day is good and here", "the river rose bad and here"])
    assert [entry["label"] for entry in found] == ["G", "B"]


def test_pairs_and_label_order_of_the_checkpoint(run, write, tmp_path):
    rows = [f"good day {'and ' * n}\tbad\t{'ny'[n % 2]}\n" for n in range(9)]
    file = str(write("pairs.tsv", "left\tright\tsame\n" + "".join(rows)))
    task = make_task("classification", Columns("left", "right", "same"))
    assert run(task, train=file, validation=None)["labels"] == ["n", "y"]
    # Turned round in the checkpoint, the order of a second run is the checkpoint's.
    turned = {"id2label": {"0": "y", "1": "n"}, "label2id": {"y": 0, "n": 1}}
    fields("config.json", **turned)(tmp_path / "out")
    options = {"model": str(tmp_path / "out"), "output": tmp_path / "second"}
    assert run(task, train=file, validation=None, **options)["labels"] == ["y", "n"]


def test_question_answering_tunes_the_null_threshold(run, squad, tmp_path, fixtures_dir):
    file, out = squad(120, 12), tmp_path / "out"
    sources = {"train": file, "validation": file, "test": file}
    report = run(make_task("question-answering"), **sources, epochs=6, **QUICK)
    scores = report["validation"]
    assert scores["f1"] == pytest.approx(scores["best_f1"]) == report["test"]["f1"]
    assert scores["f1"] > 100 * scores["NoAns_total"] / scores["total"] + 10
    config = hf_bert_impl.BertConfig.from_pretrained(out)
    assert config.null_score_diff_threshold == scores["null_score_diff_threshold"]

    # It was tuned to these weights, so further training begins without it.
    version_1 = str(fixtures_dir / "command_line" / "squad.json")
    options = {"model": str(out), "output": tmp_path / "v1", "validation": None}
    run(make_task("question-answering"), train=version_1, **options)
    config = hf_bert_impl.BertConfig.from_pretrained(tmp_path / "v1")
    assert config.null_score_diff_threshold is None


def test_head_of_another_size_is_new_and_a_broken_body_is_refused(run, tiny_bert, tmp_path):
    folder = tmp_path / "three"
    model = hf_bert_impl.BertForSequenceClassification.from_pretrained(tiny_bert, num_labels=3)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_bytes((tiny_bert / "vocab.txt").read_bytes())
    assert run(model=str(folder))["labels"] == ["B", "G"]
    weights = load_file(folder / "model.safetensors")
    del weights["bert.encoder.layer.1.output.dense.bias"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks 1 weight of BERT.*layer.1.output.dense.bias"):
        run(model=str(folder), output=tmp_path / "other")


def test_seeds_are_reproducible_and_spread(run, data, tmp_path, monkeypatch):
    heads, build = [], finetuning.build_trainer

    def remember(model, *arguments):
        heads.append(model.classifier.weight.sum().item())
        return build(model, *arguments)

    monkeypatch.setattr(finetuning, "build_trainer", remember)
    options = {"epochs": 2, "learning_rate": 4e-3, "batch_size": 8}
    options |= {"train": data("many", 80, 1), "validation": data("held out", 40, 2)}
    report = run(seeds=(5, 6, 7), **options)
    assert len(set(heads)) == 3
    scores = [report["seeds"][seed]["validation"]["accuracy"] for seed in (5, 6, 7)]
    assert len(set(scores)) > 1, scores
    assert report["validation"]["accuracy"] == max(scores)
    assert report["training"]["seed"] == (5, 6, 7)[scores.index(max(scores))]
    spread = report["spread"]["validation"]["accuracy"]
    assert spread["mean"] == pytest.approx(sum(scores) / 3)
    assert spread["std"] == pytest.approx(statistics.stdev(scores))
    assert (spread["min"], spread["max"]) == (min(scores), max(scores))
    single = run(seeds=(6,), **options, output=tmp_path / "single")
    assert single["validation"] == report["seeds"][6]["validation"]


def test_the_metric_decides_on_the_best_epoch_and_when_to_stop(run, monkeypatch):
    """A model that always says the commoner class has the best accuracy and no correlation."""
    scores = {"accuracy": [0.94, 0.9, 0.91, 0.93], "matthews_correlation": [0.0, 0.5, 0.4, 0.3]}
    for metric, best, epochs in ((None, 1, 2), ("accuracy", 1, 2), ("mcc", 2, 3)):
        task, rows = task_of("classification"), iter(zip(*scores.values(), strict=True))
        monkeypatch.setattr(
            type(task), "score", lambda *data, rows=rows: dict(zip(scores, next(rows), strict=True))
        )
        options = {"epochs": 4, "early_stopping": 1, "metric": metric, "overwrite": True}
        training = run(task, **options)["training"]
        assert (training["best_epoch"], len(training["history"])) == (best, epochs), metric


@pytest.mark.parametrize("name", COLUMNS)
def test_every_metric_can_be_chosen(name):
    task = task_of(name)
    for metric in task.metrics:
        task.choose_metric(metric)
        is_lower_better = metric in ("loss", "perplexity", "mse")
        assert task.is_better({metric: 1.0}, {metric: 2.0}) == is_lower_better, metric


def test_held_out_examples_that_were_trained_on_are_noted(run, data, write, recwarn):
    train, other = data("train", 40, 1), data("other", 13, 3)
    some = str(write("some.jsonl", "".join(Path(train).read_text().splitlines(True)[:9])))
    for files, noted in (
        ({"test": train}, ["40 test examples are training"]),
        ({"validation": some}, ["9 validation examples are training"]),
        ({"test": other}, []),
        ({"validation": other, "test": other}, ["13 test examples are validation"]),
    ):
        run(overwrite=True, **files)
        notes = [str(n.message) for n in recwarn if "examples too" in str(n.message)]
        assert [note.split("all ")[1].split(" examples too")[0] for note in notes] == noted
        recwarn.clear()


def test_one_file_is_split_with_the_same_mix_of_labels(run, data):
    """By the seed, without a text in two parts; the report has the scores of both."""
    file, task, shares = Path(data("all", 90, 1)), task_of("classification"), (0.7, 0.2, 0.1)
    file.write_text(file.read_text() * 2)  # each text twice
    report = run(task, train=str(file), validation=None, split="0.7,0.2,0.1")
    assert report["validation"].keys() == report["test"].keys()
    rows = task.read(str(file))
    parts, count = split_examples(rows, shares, seed=42), len({row.text for row in rows})
    assert report["training"]["examples"] == {part: len(found) for part, found in parts.items()}
    sizes = [len({row.text for row in found}) for found in parts.values()]
    assert sum(sizes) == count, "a text is in two parts"
    assert sizes == pytest.approx([share * count for share in shares], abs=1)
    bad = sum(row.label == "B" for row in rows) / len(rows)
    for seed in range(9):
        for found in split_examples(rows, shares, seed).values():
            share = sum(row.label == "B" for row in found) / len(found)
            assert share == pytest.approx(bad, abs=0.08)
    assert split_examples(rows, shares, seed=3) != parts
    assert split_examples(rows, (0.9, 0.1), seed=3).keys() == {"train", "validation"}


def test_warm_up_and_weight_decay(run):
    """The rate rises in a share of the steps, then falls to 0; decay spares biases and norms."""
    recipe = Recipe()
    options = {"epochs": 2, "batch_size": 8, "warmup": 0.2, "learning_rate": 1e-3}
    run(callbacks=[recipe], weight_decay=0.3, **options)
    assert recipe.rates == pytest.approx([0, 0.5, *(n / 8 for n in range(8, 0, -1))], abs=1e-6)
    assert len(recipe.groups) == 41
    for name, (decay, _) in recipe.groups.items():
        assert decay == (0 if name.endswith("bias") or "LayerNorm" in name else 0.3), name


@pytest.mark.parametrize("name", ["classification", "question-answering"])
def test_losses_are_those_of_upstreams_model(tiny_bert, tmp_path, data, squad, name):
    """The same recipe on transformers' own class, with its padding, gives the same losses."""
    task = task_of(name)
    file = data("train", 40, 1) if name == "classification" else squad(40, 1)
    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(tiny_bert)
    examples = task.read(file)
    task.learn_labels({"train": examples})
    split = Split(examples, task.features(examples, tokenizer, 43))
    options = FinetuningOptions(str(tiny_bert), tmp_path / "out", epochs=2, batch_size=9)
    settings = task.config() if name == "classification" else {}
    losses, rows = [], []
    for module in (modeling_bert, hf_bert_impl):
        torch.manual_seed(3)
        model = getattr(module, task.head).from_pretrained(tiny_bert, **settings, **NO_DROPOUT)
        torch.manual_seed(4)
        torch.nn.init.normal_(list(model.parameters())[-2])  # the weight of its head
        folder = tmp_path / module.__name__
        trainer = build_trainer(model, tokenizer, task, {"train": split}, options, 5, folder)
        trainer.args.logging_steps = trainer.state.logging_steps = 1
        rows.append(rows_through(model.bert.encoder.layer[0].intermediate))
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert len(losses[0]) == 10
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    # No padding is computed, but for rows that fill a batch up to a number that kernels get.
    tokens = 2 * sum(len(row["input_ids"]) for row in split.features)
    assert tokens <= sum(rows[1]) < 1.06 * tokens < sum(rows[0])


# --- class weights -------------------------------------------------------------------------------

ROWS = [{"labels": row} for row in (0, 0, 0, 0, 1, 1, 2)]
TAGGED = [{"token_labels": row} for row in ([-100, 0, 0, 1, -100], [-100, 0])]
SEVERAL = [{"labels": row} for row in ([1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0])]


@pytest.mark.parametrize(
    ("given", "task", "labels", "rows", "expected"),
    [
        (None, make_task("classification"), "abc", ROWS, None),
        ("balanced", make_task("classification"), "abc", ROWS, [7 / 12, 7 / 6, 7 / 3]),
        ("c=3", make_task("classification"), "abc", ROWS, [7 / 9, 7 / 9, 7 / 3]),
        ("balanced", make_task("token-classification"), "ab", TAGGED, [4 / 6, 4 / 2]),
        ("balanced", make_task("classification", multi_label=True), "ab", SEVERAL, [1 / 3, 3]),
    ],
)
def test_class_weights(given, task, labels, rows, expected):
    """Balanced ones give each class the same say."""
    task.labels = [*labels]
    found = class_weights(given, task, Split([], rows))
    assert (None if found is None else found.tolist()) == (expected and pytest.approx(expected))


@pytest.mark.parametrize("several", [False, True])
def test_class_weights_in_the_loss(tiny_bert, tmp_path, several):
    """As torch weights classes, and the presence of each of several labels."""
    task, weights = make_task("classification", multi_label=several), torch.tensor([0.5, 3.0])
    task.labels = ["a", "b"]
    model = hf_bert_impl.BertForSequenceClassification.from_pretrained(tiny_bert, **task.config())
    options = FinetuningOptions(str(tiny_bert), tmp_path / "out")
    parts = {"train": Split([], [{"input_ids": [1, 2]}])}
    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(tiny_bert)
    trainer = build_trainer(model, tokenizer, task, parts, options, 5, tmp_path, weights)
    labels = torch.eye(3)[:, :2] if several else torch.tensor([0, 1, 1])
    batch = {"input_ids": torch.tensor([[2, 7, 3], [2, 9, 3], [2, 8, 3]]), "labels": labels}
    loss, outputs = trainer.compute_loss(model, batch, return_outputs=True)
    logits, functional = outputs.logits, torch.nn.functional
    right = functional.cross_entropy(logits, labels, weights, reduction="sum") / 3
    if several:
        right = functional.binary_cross_entropy_with_logits(logits, labels, pos_weight=weights)
    torch.testing.assert_close(loss, right)
