"""What fine-tuning refuses before it trains."""

import json

import pytest
import safetensors
import safetensors.torch

import hf_bert_impl
from hf_bert_impl.tasks.base import Columns
from hf_bert_impl.tasks.registry import make_task
from tests.training.finetuning_cases import COLUMNS, assert_nothing_left

CHOICES = Columns("0", "0,1", "2")
FIELDS, TEXT = Columns("text", "more"), Columns("text")


def record(**fields):
    return json.dumps({"text": "a"} | fields) + "\n"


@pytest.mark.parametrize("part", ["train", "validation", "test"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "bad.tsv is empty"),
        ("one field\n", "no column '1'"),
        ("a day\tB\na day\t \n", "line 2 of .* has the label ' '"),
    ],
)
def test_bad_files(run, write, tmp_path, part, text, words):
    with pytest.raises(ValueError, match=words):
        run(**{part: write(text)})
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize("part", ["validation", "test"])
def test_label_unseen_in_training(run, write, part):
    words = r"line 2 of .*bad.tsv has the label 'N', which no training example has; .*'B', 'G'"
    with pytest.raises(ValueError, match=words):
        run(**{part: write("a\tG\nb\tN\n")})


@pytest.mark.parametrize(
    ("name", "columns", "text", "words"),
    [
        ("classification", COLUMNS, "a\tG\nb\tG\n", r"1 label\(s\) \(G\); expected at least 2"),
        ("regression", COLUMNS, "a\thigh\n", "label 'high'; expected a number"),
        ("regression", COLUMNS, "a\t1\nb\tnan\n", "line 2 of .*bad.tsv has the label 'nan'"),
        ("regression", COLUMNS, "a\t3e38\n", "'3e38'; .* from -1,000,000,000 to 1,000,000,000"),
        ("multiple-choice", CHOICES, "a\tb\t2\n", "2 choice.* the label '2'"),
        ("multiple-choice", CHOICES, "a\tb\tB\n", "from 0; mend it"),
        ("token-classification", COLUMNS, "a b\tO\n", "2 words and 1 tags"),
        ("regression", None, record(label=10**400), "the label 1000"),
        ("classification", None, record(text=3, label="a"), r"'3' \(int\) for a text"),
        ("classification", None, record(label=None), "the label None"),
        ("token-classification", TEXT, record(text=["a"], tags="O O"), "1 words and 2 tags"),
        ("token-classification", TEXT, record(text=[], tags=[]), "has no words"),
        ("multiple-choice", FIELDS, record(more=["b"], label=0), r"1 choice\(s\)"),
        (
            *("multiple-choice", FIELDS),
            record(more=["b"] * 2, label=0) + record(more=["b"] * 3, label=0),
            "has 3 choices; expected 2 as in",
        ),
        ("several", None, record(label=3), "the label 3; expected a list of names"),
        # Half a surrogate pair, which no file can hold: said before anything is trained.
        ("several", None, record(label="\ud800") + record(label="b"), "line 1 of .* half a surro"),
        ("classification", None, record(label="\ud800") + record(label="b"), "half a surrogate"),
    ],
)
def test_labels_of_the_wrong_kind(run, write, tmp_path, name, columns, text, words):
    options = {"multi_label": True} if name == "several" else {}
    task = make_task("classification" if options else name, columns, **options)
    with pytest.raises(ValueError, match=words):
        run(task, train=write(text, "bad.jsonl" if "{" in text else "bad.tsv"), validation=None)
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": 0}, "epochs is 0; expected a number above 0 to 1,000,000; change it"),
        ({"seeds": (3, 3)}, "no two alike"),
        ({"seeds": (2**32,)}, "from 0 to 4,294,967,295 each"),
        ({"seeds": ()}, "the seeds are"),
        ({"max_length": 44}, "max_length is 44; expected 5 to 43"),
        ({"early_stopping": 1, "validation": None}, "early stopping has no validation data"),
        ({"class_weights": "X=2"}, "class weight is 'X=2'; expected 'balanced', or NAME=WEIGHT"),
        ({"class_weights": "B=-1"}, "expected numbers from 0"),
        ({"class_weights": "B=1e300"}, "expected numbers from 0 to 1,000,000"),
    ],
)
def test_bad_options(run, tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        run(**options)
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (("parsing",), {}, "the task is 'parsing'; expected one of classification"),
        (("regression",), {"multi_label": True}, "regression has no multi-label form"),
        (("regression",), {"doc_stride": 3}, "doc_stride was given for regression"),
        (("multiple-choice",), {}, "no columns of choices"),
        (("question-answering", COLUMNS), {}, "question answering was given columns"),
    ],
)
def test_bad_tasks(arguments, options, words):
    with pytest.raises(ValueError, match=words):
        make_task(*arguments, **options)


def test_head_of_another_size_is_new_and_a_broken_body_is_refused(run, tiny_bert, tmp_path):
    folder = tmp_path / "three"
    model = hf_bert_impl.BertForSequenceClassification.from_pretrained(tiny_bert, num_labels=3)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_bytes((tiny_bert / "vocab.txt").read_bytes())
    assert run(model=str(folder))["labels"] == ["B", "G"]
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    del weights["bert.encoder.layer.1.output.dense.bias"]
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks 1 weight of BERT.*layer.1.output.dense.bias"):
        run(model=str(folder), output=tmp_path / "other")
