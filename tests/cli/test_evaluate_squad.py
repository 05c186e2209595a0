"""`hf-bert evaluate squad`: scores of a model and of a file of predictions."""

import json

import pytest

from hf_bert_impl import QuestionAnsweringPipeline
from hf_bert_impl.data.squad import read_squad
from hf_bert_impl.tasks.squad import evaluate_predictions, predict_squad
from tests.support.damage import fields

CONTEXT = "Nice to meet you, the river rose over night. " * 3
EVALUATE = ("evaluate", "squad")


def write(file, value):
    file.write_text(json.dumps(value), encoding="utf-8")
    return file


@pytest.fixture
def model(save_tiny):
    return save_tiny("BertForQuestionAnswering")


@pytest.fixture
def entries():
    """Three questions with an answer and two without."""
    return [
        {
            "id": f"q{number}",
            "question": f"{text}?",
            "is_impossible": number > 2,
            "answers": [] if number > 2 else [{"text": text, "answer_start": 99}],  # is not read
        }
        for number, text in enumerate(("river", "meet you", "night", "a", "and"))
    ]


def data(tmp_path, entries, version="v2.0"):
    paragraph = {"context": CONTEXT, "qas": entries}
    value = {"version": version, "data": [{"title": "t", "paragraphs": [paragraph]}]}
    return write(tmp_path / "dev.json", value)


@pytest.fixture
def dev(tmp_path, entries):
    return data(tmp_path, entries)


@pytest.fixture
def dev_1(tmp_path, entries):
    old = [{k: v for k, v in entry.items() if k != "is_impossible"} for entry in entries[:3]]
    return data(tmp_path, old, "1.1")


@pytest.fixture
def predictions(tmp_path):
    return write(tmp_path / "p.json", {"q0": "the river", "q1": "meet", "q2": "", "q3": "x"})


# --- predictions without a model -------------------------------------------------------------


def test_predictions(hf_bert, dev, predictions):
    result = hf_bert("evaluate", "squad", predictions, dev, "--json")
    found = result.report
    assert result.err == "note: 1 questions have no prediction and count as wrong\n"
    assert found["exact"] == pytest.approx(20)
    assert found["f1"] == pytest.approx(100 * (1 + 2 / 3) / 5)
    assert found["HasAns_total"] == 3
    assert found["NoAns_f1"] == 0
    assert "best_f1" not in found


# --- a model ---------------------------------------------------------------------------------


def test_model(hf_bert, model, dev, tmp_path):
    options = {"max_seq_len": 20, "doc_stride": 4, "max_answer_len": 6, "max_question_len": 8}
    flags = [x for key, value in options.items() for x in (f"--{key.replace('_', '-')}", value)]
    output = tmp_path / "made" / "out"
    result = hf_bert("evaluate", "squad", model, dev, *flags, "-o", output, "--json")
    found = result.report
    assert result.err == ""
    squad = read_squad(dev, check_places=False)
    pipeline = QuestionAnsweringPipeline.from_pretrained(model, device="cpu")
    answers = predict_squad(pipeline, squad.questions, **options)
    texts, differences = answers.texts, answers.null_score_diffs
    expected = evaluate_predictions(squad, texts, differences, 0.0)
    assert found == {**expected, "null_score_diff_threshold": 0.0}

    # Another run does not replace them unasked, and leaves none of theirs when it does.
    before = {file.name: file.read_bytes() for file in output.iterdir()}
    command = ("evaluate", "squad", model, "-o", output)
    refused = hf_bert(*command, dev)
    assert (refused.status, refused.err.count("\n")) == (2, 1)
    assert f"{output} has files in it" in refused.err
    assert "replace it with --overwrite" in refused.err
    assert {file.name: file.read_bytes() for file in output.iterdir()} == before

    # The files give the same figures again: with the threshold applied, and to be applied.
    def again(name, *more):
        files = (output / name, dev, *more)
        return hf_bert("evaluate", "squad", *files, "--json").report

    decided = again("predictions.json")
    assert all(found[key] == value for key, value in decided.items())
    official = again(
        "predictions_without_null.json",
        *("--na-prob", output / "null_score_diffs.json", "--na-prob-threshold", 0),
    )
    assert official == expected


def test_the_models_own_threshold(hf_bert, model, dev):
    fields("config.json", null_score_diff_threshold=-99.0)(model)
    run = ("evaluate", "squad", model, dev, "--json")
    found = hf_bert(*run).report
    assert found["null_score_diff_threshold"] == -99
    assert (found["HasAns_exact"], found["NoAns_exact"]) == (0, 100)
    found = hf_bert(*run, "--null-score-diff-threshold", 99).report
    assert found["null_score_diff_threshold"] == 99
    assert found["NoAns_exact"] == 0


def test_tuning_the_threshold(hf_bert, model, dev):
    run = ("evaluate", "squad", model, dev, "--json")
    before = hf_bert(*run).report
    tuned = hf_bert(*run, "--tune-threshold").report
    assert tuned["f1"] == pytest.approx(tuned["best_f1"])
    assert tuned["f1"] >= before["f1"]
    config = json.loads((model / "config.json").read_text())
    assert config["null_score_diff_threshold"] == tuned["null_score_diff_threshold"]
    assert hf_bert(*run).report == tuned
    assert not list(model.glob(".*"))


def test_version_1(hf_bert, one_error_line, model, dev_1, predictions, tmp_path):
    run = (*EVALUATE, model, "--json", "-o", tmp_path / "out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "null_score_diffs.json").write_text("of another run")
    result = hf_bert(*run, dev_1, "--overwrite", "--null-score-diff-threshold", 0)
    one_error_line(result, "--null-score-diff-threshold has no effect on SQuAD v1.1")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["null_score_diffs.json"]
    found = hf_bert(*run, dev_1, "--overwrite").report
    assert not {"null_score_diff_threshold", "best_f1", "NoAns_total"} & found.keys()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["predictions.json"]
    texts = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert all(texts.values())
    scored = (predictions, dev_1, "--json")
    found = hf_bert(*EVALUATE, *scored).report
    assert found["total"] == found["HasAns_total"] == 3
