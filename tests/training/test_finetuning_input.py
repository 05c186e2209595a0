"""What fine-tuning refuses before it trains."""

import json

import pytest
import safetensors
import safetensors.torch

import hf_bert_impl
from hf_bert_impl.tasks.base import Columns
from hf_bert_impl.tasks.registry import make_task
from tests.training.finetuning_cases import COLUMNS, assert_nothing_left


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
def test_label_unseen_in_training(run, write, tmp_path, part):
    words = r"line 2 of .*bad.tsv has the label 'N', which no training example has; .*'B', 'G'"
    with pytest.raises(ValueError, match=words):
        run(**{part: write("a\tG\nb\tN\n")})
    assert_nothing_left(tmp_path)


def test_one_label_teaches_nothing(run, write):
    with pytest.raises(ValueError, match=r"1 label\(s\) \(G\); expected at least 2"):
        run(train=write("a\tG\nb\tG\n"))


@pytest.mark.parametrize(
    ("name", "columns", "text", "words"),
    [
        ("regression", COLUMNS, "a\thigh\n", "label 'high'; expected a number"),
        ("regression", COLUMNS, "a\tinf\n", "label 'inf'; expected a number"),
        ("regression", COLUMNS, "a\t1\nb\tnan\n", "line 2 of .*bad.tsv has the label 'nan'"),
        ("regression", COLUMNS, "a\t3e38\n", "'3e38'; .* from -1,000,000,000 to 1,000,000,000"),
        ("multiple-choice", Columns("0", "0,1", "2"), "a\tb\t2\n", "2 choice.* the label '2'"),
        ("multiple-choice", Columns("0", "0,1", "2"), "a\tb\tB\n", "from 0; mend it"),
        ("token-classification", Columns("0", None, "1"), "a b\tO\n", "2 words and 1 tags"),
    ],
)
def test_labels_of_the_wrong_kind(run, write, name, columns, text, words):
    with pytest.raises(ValueError, match=words):
        run(make_task(name, columns), train=write(text))


def test_json_of_the_wrong_kind(run, write):
    def columns(name):
        return make_task(name, Columns("text", "more" if name == "multiple-choice" else None))

    for name, record, words in (
        ("regression", {"text": "a", "label": 10**400}, "the label 1000"),
        ("classification", {"text": 3, "label": "a"}, r"'3' \(int\) for a text"),
        ("classification", {"text": "a", "label": None}, "the label None"),
        ("token-classification", {"text": ["a"], "tags": "O O"}, "1 words and 2 tags"),
        ("token-classification", {"text": [], "tags": []}, "has no words"),
        ("multiple-choice", {"text": "a", "more": ["b"], "label": 0}, r"1 choice\(s\)"),
    ):
        with pytest.raises(ValueError, match=words):
            run(columns(name), train=write(json.dumps(record), "bad.jsonl"))
    several = make_task("classification", multi_label=True)
    with pytest.raises(ValueError, match="the label 3; expected a list of names"):
        run(several, train=write(json.dumps({"text": "a", "label": 3}), "bad.jsonl"))
    unequal = [{"text": "a", "more": ["b"] * n, "label": 0} for n in (2, 3)]
    with pytest.raises(ValueError, match="has 3 choices; expected 2 as in"):
        file = write(json.dumps(unequal), "bad.json")
        run(columns("multiple-choice"), train=file, validation=None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": 0}, "epochs is 0; expected a number above 0 to 1,000,000; change it"),
        ({"batch_size": 0}, "batch_size is 0; expected a whole number from 1 to 1,000,000"),
        ({"learning_rate": float("nan")}, "learning_rate is nan; expected a number above 0 to 1;"),
        ({"warmup": 1}, "warmup is 1; expected a number from 0 to below 1"),
        ({"early_stopping": 0}, "early_stopping is 0"),
        ({"seeds": (3, 3)}, "no two alike"),
        ({"seeds": (2**32,)}, "from 0 to 4,294,967,295 each"),
        ({"seeds": ()}, "the seeds are"),
        ({"max_length": 44}, "max_length is 44; expected 5 to 43"),
        ({"early_stopping": 1, "validation": None}, "early stopping has no validation data"),
        ({"class_weights": "X=2"}, "class weight is 'X=2'; expected 'balanced', or NAME=WEIGHT"),
        ({"class_weights": "B=-1"}, "expected numbers from 0"),
        ({"class_weights": "B=nan"}, "expected numbers from 0"),
        ({"class_weights": "B=1e300"}, "expected numbers from 0 to 1,000,000"),
    ],
)
def test_bad_options(run, tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        run(**options)
    assert_nothing_left(tmp_path)


def test_bad_tasks():
    with pytest.raises(ValueError, match="the task is 'parsing'; expected one of classification"):
        make_task("parsing")
    with pytest.raises(ValueError, match="regression has no multi-label form"):
        make_task("regression", multi_label=True)
    with pytest.raises(ValueError, match="doc_stride was given for regression"):
        make_task("regression", doc_stride=3)
    with pytest.raises(ValueError, match="no columns of choices"):
        make_task("multiple-choice")
    with pytest.raises(ValueError, match="question answering was given columns"):
        make_task("question-answering", COLUMNS)


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


def test_a_label_that_no_file_can_hold(run, write, tmp_path):
    """Half a surrogate pair: said before anything is trained."""
    records = [{"text": "a day", "label": label} for label in ("\ud800", "good")]
    file = write("".join(json.dumps(record) + "\n" for record in records), "bad.jsonl")
    words = r"'label' in line 1 of .*bad.jsonl has half a surrogate pair"
    for task in (make_task("classification"), make_task("classification", multi_label=True)):
        with pytest.raises(ValueError, match=words):
            run(task, train=file)
    assert_nothing_left(tmp_path)
