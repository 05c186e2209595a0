"""Fine-tuning: every task learns, and what it leaves can be used."""

import json
import random

import pytest
import torch
import transformers

import hf_bert_impl
from hf_bert_impl.tasks.base import Columns
from hf_bert_impl.tasks.evaluation import evaluate_task, task_for_model
from hf_bert_impl.tasks.registry import GLUE, TASKS, make_task
from hf_bert_impl.training.finetuning import Sources, finetune
from hf_bert_impl.training.finetuning_options import FinetuningOptions
from hf_bert_impl.training.finetuning_trainer import FinetuningTrainer
from tests.model.cases import rows_through
from tests.training.finetuning_cases import COLUMNS, squad_paragraphs


@pytest.fixture
def tune(tiny_bert, tmp_path):
    """Fine-tune the tiny BERT; gives the report and the folder."""

    def run(task, train, validation=None, test=None, **options):
        settings = {"epochs": 4, "learning_rate": 3e-3, "batch_size": 16, "warmup": 0.0} | options
        output = settings.pop("output", tmp_path / "out")
        report = finetune(
            task,
            Sources(train, validation, test),
            FinetuningOptions(model=str(tiny_bert), output=output, **settings),
        )
        return report, output

    return run


def again(report, folder, part, source, columns=None):
    """The same scores from the folder alone."""
    config = hf_bert_impl.BertConfig.from_pretrained(folder)
    task = task_for_model(report["task"], config, columns)
    scores, _, _ = evaluate_task(task, folder, source, report["training"]["max_length"])
    assert scores == pytest.approx(report[part], abs=1e-6)


def test_classification(tune, sentiment):
    train, dev, test = sentiment("train", 480, 1), sentiment("dev", 31, 2), sentiment("test", 37, 3)
    report, out = tune(make_task("classification", COLUMNS), train, dev, test)
    assert report["test"]["accuracy"] > 0.9
    assert report["validation"].keys() == report["test"].keys() >= {"accuracy", "f1"}
    assert report["labels"] == ["B", "G"]
    assert report["training"]["examples"] == {"train": 480, "validation": 31, "test": 37}
    history = report["training"]["history"]
    best = max(history, key=lambda entry: entry["accuracy"])
    assert report["training"]["best_epoch"] == best["epoch"]
    assert report["validation"]["accuracy"] == best["accuracy"]

    assert json.loads((out / "metrics.json").read_text()) == report
    card = (out / "README.md").read_text()
    assert f"{report['test']['accuracy']:.4g}" in card
    for picture in ("training.png", "predictions.png"):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")
        assert picture in card
    assert not [file.name for file in out.iterdir() if file.is_dir() or file.suffix == ".bin"]
    assert not out.with_name("out.unfinished").exists()
    again(report, out, "test", test, COLUMNS)

    # Any user of transformers can load it.
    stock = transformers.AutoModelForSequenceClassification.from_pretrained(out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert stock.config.id2label == {0: "B", 1: "G"}
    assert stock.config.problem_type == "single_label_classification"
    classify = transformers.pipeline("text-classification", model=stock, tokenizer=tokenizer)
    found = classify(["the day is good", "the day is bad"])
    assert [entry["label"] for entry in found] == ["G", "B"]


def test_pairs_and_label_order_of_the_checkpoint(tune, write, sentences, tiny_bert):
    chance = random.Random(4)
    rows = ["left\tright\tsame\n"]
    for words in sentences(60, 5):
        a, b = chance.choices(["good", "bad"], k=2)
        rows.append(f"{a} {' '.join(words)}\t{b}\t{'yes' if a == b else 'no'}\n")
    file = write("".join(rows), "pairs.tsv")
    columns = Columns("left", "right", "same")
    report, out = tune(make_task("classification", columns), file, file, epochs=1)
    assert report["labels"] == ["no", "yes"]
    # Turned round in the checkpoint, the order of a second run is the checkpoint's.
    config = json.loads((out / "config.json").read_text())
    config |= {"id2label": {"0": "yes", "1": "no"}, "label2id": {"yes": 0, "no": 1}}
    (out / "config.json").write_text(json.dumps(config))
    task = make_task("classification", columns)
    options = FinetuningOptions(str(out), out.with_name("second"), epochs=0.1)
    assert finetune(task, Sources(file), options)["labels"] == ["yes", "no"]


def test_several_labels(tune, write, sentences):
    chance = random.Random(6)
    records = []
    for words in sentences(200, 7):
        labels = [label for label in ("good", "odd") if chance.random() < 0.5]
        chance.shuffle(words)
        records.append({"text": " ".join([*labels, *words]), "label": labels})
    file = write("\n".join(map(json.dumps, records)), "labels.jsonl")
    report, out = tune(make_task("classification", multi_label=True), file, None, file, epochs=6)
    assert report["labels"] == ["good", "odd"]
    assert report["test"]["accuracy"] > 0.9
    assert "validation" not in report
    assert report["training"]["best_epoch"] is None
    again(report, out, "test", file)


def test_regression(tune, write, sentences):
    rows = ["text,label\n"]
    for words in sentences(200, 8):
        goods = random.Random(" ".join(words)).randint(0, 3)
        rows.append(f"{' '.join(['good'] * goods + words)},{goods * 1.5}\n")
    file = write("".join(rows), "scores.csv")
    report, out = tune(make_task("regression"), file, file, epochs=8)
    assert report["validation"]["pearson"] > 0.8
    assert "labels" not in report
    config = hf_bert_impl.BertConfig.from_pretrained(out)
    assert (config.num_labels, config.problem_type) == (1, "regression")
    again(report, out, "validation", file)


def test_token_classification(tune, write, sentences):
    chance, lines = random.Random(9), []
    for words in sentences(150, 10):
        tags = ["O"] * len(words)
        place = chance.randrange(len(words))
        kind, name = chance.choice(
            [("per", ["ann", "bobs"]), ("loc", ["paris"]), ("loc", ["rome"])]
        )
        words[place:place] = name
        tags[place:place] = [f"{'I' if n else 'B'}-{kind}" for n in range(len(name))]
        lines.append("".join(f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True)))
    file = write("\n".join(lines), "tags.conll")
    report, out = tune(make_task("token-classification"), file, file, epochs=6)
    assert report["labels"] == ["O", "B-loc", "B-per", "I-per"]
    assert report["validation"]["f1"] > 0.9
    assert (out / "predictions.png").is_file()
    again(report, out, "validation", file)


def test_question_answering_tunes_the_null_threshold(tune, write, sentences):
    questions = squad_paragraphs(sentences(120, 12))
    file = write(json.dumps({"version": "v2.0", "data": [{"paragraphs": questions}]}), "squad.json")
    report, out = tune(make_task("question-answering"), file, file, file, epochs=6)
    scores = report["validation"]
    assert scores["f1"] == pytest.approx(scores["best_f1"]) == report["test"]["f1"]
    assert scores["f1"] > 100 * scores["NoAns_total"] / scores["total"] + 10
    config = hf_bert_impl.BertConfig.from_pretrained(out)
    assert config.null_score_diff_threshold == scores["null_score_diff_threshold"]

    # It was tuned to these weights, so further training begins without it.
    answered = [entry for entry in questions if not entry["qas"][0]["is_impossible"]]
    without = write(
        json.dumps({"version": "1.1", "data": [{"paragraphs": answered}]}), "squad1.json"
    )
    for name, source, threshold in (("v1", without, None), ("v2", file, 0)):
        options = FinetuningOptions(str(out), out.with_name(name), epochs=0.1)
        finetune(make_task("question-answering"), Sources(source), options)
        config = hf_bert_impl.BertConfig.from_pretrained(out.with_name(name))
        assert config.null_score_diff_threshold == threshold


def test_multiple_choice(tune, write, sentences):
    chance, rows = random.Random(13), []
    for words in sentences(150, 14):
        right = chance.randrange(3)
        choices = ["bad day"] * 3
        choices[right] = "good day"
        rows.append("\t".join([" ".join(words), *choices, str(right)]) + "\n")
    file = write("".join(rows), "choices.tsv")
    columns = Columns("0", "1,2,3", "4")
    report, out = tune(make_task("multiple-choice", columns), file, file)
    assert report["validation"] == {"accuracy": pytest.approx(1, abs=0.05)}
    assert json.loads((out / "config.json").read_text())["architectures"] == [
        "BertForMultipleChoice"
    ]


@pytest.mark.parametrize("masking", ["token", "whole-word"])
def test_masked_lm(tune, write, masking):
    # Everything follows from what stands around it, even in windows of a long line.
    text = " ".join(["the river rose over night and"] * 40)
    file = write("\n".join([text] * 3), "texts.txt")
    task = make_task("masked-lm", masking=masking)
    report, _ = tune(task, file, file, epochs=30, max_length=31)
    history = report["training"]["history"]
    assert report["validation"]["perplexity"] < history[0]["perplexity"] / 2
    assert report["validation"]["loss"] == min(entry["loss"] for entry in history)
    assert report["training"]["max_length"] == 31


def test_seeds_are_reproducible_and_spread(tune, sentiment, tmp_path):
    train, dev = sentiment("train", 48, 1), sentiment("dev", 31, 2)
    task = make_task("classification", COLUMNS)
    report, _ = tune(task, train, dev, epochs=2, seeds=(5, 6, 7))
    scores = [report["seeds"][seed]["validation"]["accuracy"] for seed in (5, 6, 7)]
    assert report["validation"]["accuracy"] == max(scores)
    assert report["training"]["seed"] == (5, 6, 7)[scores.index(max(scores))]
    spread = report["spread"]["validation"]["accuracy"]
    assert spread["mean"] == pytest.approx(sum(scores) / 3)
    assert (spread["min"], spread["max"]) == (min(scores), max(scores))
    single, _ = tune(task, train, dev, epochs=2, seeds=(6,), output=tmp_path / "single")
    assert single["validation"] == report["seeds"][6]["validation"]


def test_early_stopping_keeps_the_best_epoch(tune, sentiment):
    train, dev = sentiment("train", 160, 1), sentiment("dev", 31, 2)
    task = make_task("classification", COLUMNS)
    report, out = tune(task, train, dev, epochs=30, early_stopping=2)
    history = report["training"]["history"]
    assert len(history) < 30
    best = [entry["accuracy"] for entry in history].index(report["validation"]["accuracy"])
    assert len(history) - 1 - best == 2
    again(report, out, "validation", dev, COLUMNS)


def test_data_set_in_place_of_files(tune, tmp_path, sentences):
    datasets = pytest.importorskip("datasets", reason="pip install -e '.[train]'")
    features = datasets.Features(
        sentence1=datasets.Value("string"),
        sentence2=datasets.Value("string"),
        label=datasets.ClassLabel(names=["different", "equivalent"]),
    )
    left = [" ".join(words) for words in sentences(20, 15)]
    table = {"sentence1": left, "sentence2": left[::-1], "label": [0, 1] * 10}
    for split in ("train", "validation"):
        datasets.Dataset.from_dict(table, features=features).to_parquet(
            tmp_path / "set" / f"{split}.parquet"
        )
    task = make_task("mrpc", dataset=str(tmp_path / "set"))
    assert task.best_metric == "f1"
    report, _ = tune(task, "train", "validation", epochs=1)
    assert report["labels"] == ["different", "equivalent"]
    assert set(TASKS) == {
        *("classification", "regression", "token-classification"),
        *("question-answering", "multiple-choice", "masked-lm"),
    }
    assert {glue.kind for glue in GLUE.values()} <= set(TASKS)


def test_progress_counts_examples(tiny_bert, tmp_path, sentiment):
    steps = []
    options = FinetuningOptions(
        str(tiny_bert), tmp_path / "out", epochs=1, batch_size=8, gradient_accumulation=2
    )
    finetune(
        make_task("classification", COLUMNS),
        Sources(sentiment("train", 48, 1)),
        options,
        lambda examples, share: steps.append((examples, share)),
    )
    assert steps == [(8, pytest.approx(n / 6)) for n in range(1, 7)]


def test_losses_are_those_of_upstreams_model(tiny_bert, tmp_path, sentiment):
    """The same recipe on transformers' own class, with its padding, gives the same weights."""
    from transformers.models.bert import modeling_bert

    from hf_bert_impl.tasks.base import Split
    from hf_bert_impl.training.finetuning_trainer import build_trainer

    task = make_task("classification", COLUMNS)
    tokenizer = hf_bert_impl.BertTokenizer.from_pretrained(tiny_bert)
    examples = task.read(sentiment("train", 80, 1))
    task.learn_labels(examples, [])
    split = Split(examples, task.features(examples, tokenizer, 43))
    options = FinetuningOptions(str(tiny_bert), tmp_path / "out", epochs=2, batch_size=9)
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    losses = []
    for module in (hf_bert_impl, modeling_bert):
        torch.manual_seed(3)
        model = module.BertForSequenceClassification.from_pretrained(
            tiny_bert, **task.config(), **dropout
        )
        torch.manual_seed(4)
        torch.nn.init.normal_(model.classifier.weight)
        folder = tmp_path / module.__name__
        trainer = build_trainer(model, tokenizer, task, {"train": split}, options, 5, folder)
        trainer.args.logging_steps = trainer.state.logging_steps = 1
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert len(losses[0]) == 18
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


def test_question_answering_computes_no_padding(tmp_path, tiny_bert):
    """The loss is that of each window alone, whatever the batch's width; transformers agrees."""
    model = hf_bert_impl.BertForQuestionAnswering.from_pretrained(tiny_bert).eval()
    stock = transformers.BertForQuestionAnswering.from_pretrained(tiny_bert).eval()
    stock.load_state_dict(model.state_dict())
    settings = transformers.TrainingArguments(output_dir=tmp_path, report_to="none")
    trainers = [
        FinetuningTrainer(make_task("question-answering"), None, model=each, args=settings)
        for each in (model, stock)
    ]
    rows = rows_through(model.bert.encoder.layer[0].intermediate)

    def batch(lengths, width):
        torch.manual_seed(2)
        mask = torch.arange(width) < torch.tensor(lengths)[:, None]
        ids = torch.cat([torch.randint(5, 25, (len(lengths), 13)), torch.zeros(2, 30)], 1).long()
        given = {"start_positions": torch.tensor([0, 11]), "end_positions": torch.tensor([0, 12])}
        return {"input_ids": ids[:, :width] * mask, "attention_mask": mask.long()} | given

    found = []
    for trainer, width in ((trainers[0], 13), (trainers[0], 17), (trainers[1], 17)):
        trainer.model.zero_grad()
        loss = trainer.compute_loss(trainer.model, batch([9, 13], width))
        loss.backward()
        gradients = {name: p.grad for name, p in trainer.model.named_parameters()}
        found.append((loss.item(), gradients))
    assert rows == [22, 22]
    alone = []
    for row, length in enumerate((9, 13)):
        whole = batch([9, 13], 13)
        one = {name: value[row : row + 1] for name, value in whole.items()}
        for name in ("input_ids", "attention_mask"):
            one[name] = one[name][:, :length]
        alone.append(model(**one).loss)
    assert found[0][0] == pytest.approx((sum(alone) / 2).item(), rel=1e-5)
    for loss, gradients in found[1:]:
        assert loss == pytest.approx(found[0][0], rel=1e-6)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, found[0][1][name], rtol=1e-4, atol=1e-6, msg=name)
