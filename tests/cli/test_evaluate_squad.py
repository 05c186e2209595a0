"""`hf-bert evaluate squad`: scores of a model and of a file of predictions."""

import json

import pytest

from hf_bert_impl import QuestionAnsweringPipeline
from hf_bert_impl.data.squad import read_squad
from hf_bert_impl.tasks.squad import evaluate_predictions, predict_squad
from tests.support.damage import fields

CONTEXT = "Nice to meet you, the river rose over night. " * 3
EVALUATE = ("evaluate", "squad")


@pytest.fixture
def model(save_tiny):
    return save_tiny("BertForQuestionAnswering")


@pytest.fixture
def save(write):
    """Writes three questions with an answer; in version 2 also two without."""

    def save(version):
        entries, count = [], 5 if version == "v2.0" else 3
        for n, text in enumerate(("river", "meet you", "night", "a", "and")[:count]):
            answers = [{"text": text, "answer_start": 99}] if n < 3 else []  # 99 is not read
            entry = {"id": f"q{n}", "question": f"{text}?", "answers": answers}
            entries.append(entry | {"is_impossible": not answers})
        paragraph = {"context": CONTEXT, "qas": entries}
        value = {"version": version, "data": [{"title": "t", "paragraphs": [paragraph]}]}
        return write(f"dev {version}.json", json.dumps(value))

    return save


@pytest.fixture
def dev(save):
    return save("v2.0")


def test_predictions(hf_bert, save, dev, write):
    predictions = write("p.json", '{"q0": "the river", "q1": "meet", "q2": "", "q3": "x"}')
    result = hf_bert(*EVALUATE, predictions, dev, "--json")
    found = result.report
    assert result.err == "note: 1 questions have no prediction and count as wrong\n"
    assert found["exact"] == pytest.approx(20)
    assert found["f1"] == pytest.approx(100 * (1 + 2 / 3) / 5)
    assert (found["HasAns_total"], found["NoAns_f1"]) == (3, 0)
    assert "best_f1" not in found
    found = hf_bert(*EVALUATE, predictions, save("1.1"), "--json").report
    assert found["total"] == found["HasAns_total"] == 3


def test_model(hf_bert, model, dev, tmp_path):
    options = {"max_seq_len": 20, "doc_stride": 4, "max_answer_len": 6, "max_question_len": 8}
    flags = [x for key, value in options.items() for x in (f"--{key.replace('_', '-')}", value)]
    output = tmp_path / "made" / "out"
    result = hf_bert(*EVALUATE, model, dev, *flags, "-o", output, "--json")
    found = result.report
    assert result.err == ""
    squad = read_squad(dev, check_places=False)
    pipeline = QuestionAnsweringPipeline.from_pretrained(model, device="cpu")
    answers = predict_squad(pipeline, squad.questions, **options)
    expected = evaluate_predictions(squad, answers.texts, answers.null_score_diffs, 0.0)
    assert found == {**expected, "null_score_diff_threshold": 0.0}

    # The files give the same figures again: with the threshold applied, and to be applied.
    decided = hf_bert(*EVALUATE, output / "predictions.json", dev, "--json").report
    assert found | decided == found
    differences = ("--na-prob", output / "null_score_diffs.json", "--na-prob-threshold", 0)
    files = (output / "predictions_without_null.json", dev, *differences)
    assert hf_bert(*EVALUATE, *files, "--json").report == expected


def test_thresholds(hf_bert, model, dev):
    """Tuned and saved; the model's own; and that of the command, which goes first."""
    run = (*EVALUATE, model, dev, "--json")
    before = hf_bert(*run).report
    tuned = hf_bert(*run, "--tune-threshold").report
    assert tuned["f1"] == pytest.approx(tuned["best_f1"])
    assert tuned["f1"] >= before["f1"]
    config = json.loads((model / "config.json").read_text())
    assert config["null_score_diff_threshold"] == tuned["null_score_diff_threshold"]
    assert hf_bert(*run).report == tuned
    assert not list(model.glob(".*"))
    fields("config.json", null_score_diff_threshold=-99.0)(model)
    found = hf_bert(*run).report
    assert (found["HasAns_exact"], found["NoAns_exact"]) == (0, 100)
    found = hf_bert(*run, "--null-score-diff-threshold", 99).report
    assert (found["null_score_diff_threshold"], found["NoAns_exact"]) == (99, 0)


def test_version_1(hf_bert, model, save, tmp_path):
    """What an older run left is removed."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "null_score_diffs.json").write_text("of another run")
    command = (*EVALUATE, model, save("1.1"), "--json", "-o", out, "--overwrite")
    found = hf_bert(*command).report
    assert not {"null_score_diff_threshold", "best_f1", "NoAns_total"} & found.keys()
    assert [path.name for path in out.iterdir()] == ["predictions.json"]
    assert all(json.loads((out / "predictions.json").read_text()).values())
