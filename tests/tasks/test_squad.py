"""SQuAD's scores, compared with the official scripts, and the threshold of the null answer."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_bert_impl.data.squad import Answer, Question, Squad
from hf_bert_impl.tasks.squad import (
    decide,
    evaluate_predictions,
    read_na_probs,
    read_predictions,
    tune_null_threshold,
)


def squad_of(answers, version=2):
    """Questions out of right answers by id."""
    questions = tuple(
        Question(key, "q", "c", tuple(Answer(text, 0) for text in texts))
        for key, texts in answers.items()
    )
    return Squad(questions, version)


# --- the official scripts --------------------------------------------------------------------


def test_figures_of_the_official_scripts(fixtures_dir):
    """Recorded from evaluate-v2.0.py and evaluate-v1.1.py on made-up answers: equal to the bit."""
    file = fixtures_dir / "question_answering" / "official_scores.json"
    cases = json.loads(file.read_text(encoding="utf-8"))
    assert {case["version"] for case in cases} == {1, 2}
    for case in cases:
        threshold = case.get("na_prob_threshold", 1.0)
        squad = squad_of(case["answers"], case["version"])
        found = evaluate_predictions(squad, case["predictions"], case.get("na_probs"), threshold)
        if case["version"] == 1:
            official = case["official"]
            assert found["exact"] == official["exact_match"]
            assert found["f1"] == official["f1"]
            assert found["total"] == len(case["answers"])
        else:
            assert found == case["official"]
            assert list(found) == list(case["official"])


def test_what_cannot_be_scored():
    squad = squad_of({"a": ["cat"], "b": []})
    with pytest.raises(ValueError, match="none of the 1 predictions belongs to one of the 2 quest"):
        evaluate_predictions(squad, {"c": "cat"})
    with pytest.raises(ValueError, match=r"1 predicted questions \('b' first\) have no no-answer"):
        evaluate_predictions(squad, {"a": "cat", "b": ""}, {"a": 0.5})


# --- the threshold ---------------------------------------------------------------------------

QUESTIONS = st.lists(
    st.tuples(
        st.sampled_from([[], ["cat"], ["cat sat", "dog"]]),
        st.sampled_from(["cat", "dog", "cat dog"]),
        st.integers(-1000, 1000),
    ),
    min_size=1,
    max_size=9,
    unique_by=lambda item: item[2],
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(questions=QUESTIONS)
def test_the_tuned_threshold_is_the_best_of_all(questions):
    answers = {str(n): right for n, (right, _, _) in enumerate(questions)}
    predictions = {str(n): text for n, (_, text, _) in enumerate(questions)}
    differences = {str(n): number / 10 for n, (_, _, number) in enumerate(questions)}
    squad = squad_of(answers)
    numbers = sorted(differences.values())
    every = [numbers[0] - 1, *numbers]
    figures = {}
    for threshold in every:
        decided = decide(predictions, differences, threshold)
        figures[threshold] = evaluate_predictions(squad, decided)["f1"]
        # The official way to the same figures.
        official = evaluate_predictions(squad, predictions, differences, threshold)
        assert official["f1"] == pytest.approx(figures[threshold])
    tuned = tune_null_threshold(squad, predictions, differences)
    assert figures[tuned] == pytest.approx(max(figures.values()))
    best = evaluate_predictions(squad, predictions, differences)
    assert best["best_f1"] == pytest.approx(max(figures.values()))


# --- files -----------------------------------------------------------------------------------


def test_files_of_predictions(tmp_path):
    file = tmp_path / "p.json"
    file.write_text('{"a": "Ünï", "b": ""}', encoding="utf-8")
    assert read_predictions(file) == {"a": "Ünï", "b": ""}
    file.write_text('{"a": 3, "b": -0.5}')
    assert read_na_probs(file) == {"a": 3, "b": -0.5}
    for read, content, words in (
        (read_predictions, "[]", "holds a list.*a JSON object of question ids to texts"),
        (read_predictions, "{}", "holds an empty dict"),
        (read_predictions, '{"a": 3}', "has 3 for 'a'"),
        (read_na_probs, '{"a": "x"}', "has \"x\" for 'a'. Give a JSON object of .* to numbers"),
        (read_na_probs, '{"a": true}', "has true for 'a'"),
        (read_na_probs, '{"a": NaN}', "has NaN for 'a'"),
        (read_predictions, "", "is empty"),
    ):
        file.write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=words):
            read(file)
