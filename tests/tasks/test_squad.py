"""SQuAD's scores, compared with the official scripts, and the threshold of the null answer."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_bert_impl.data.squad import Answer, Question, Squad
from hf_bert_impl.tasks.squad import decide, evaluate_predictions, tune_null_threshold


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
        if case["version"] == 2:
            assert [*found.items()] == [*case["official"].items()]
            continue
        scores = {"exact_match": found["exact"], "f1": found["f1"]}
        assert scores == case["official"] and found["total"] == len(case["answers"])


def test_answers_without_words():
    """v1.1 counts common words, and there is none; in v2.0 such answers agree."""
    for version, f1 in ((1, 0), (2, 100)):
        found = evaluate_predictions(squad_of({"q": ["the"]}, version), {"q": "a"})
        assert (found["exact"], found["f1"]) == (100, f1)


# --- the threshold ---------------------------------------------------------------------------

#: Its right answers, the predicted one, and the score of none.
QUESTION = st.tuples(
    st.sampled_from([[], ["cat"], ["cat sat", "dog"]]),
    st.sampled_from(["cat", "dog", "cat dog"]),
    st.integers(-1000, 1000),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(QUESTION, min_size=1, max_size=9, unique_by=lambda item: item[2]))
def test_the_tuned_threshold_is_the_best_of_all(questions):
    answers = {str(n): right for n, (right, _, _) in enumerate(questions)}
    predictions = {str(n): text for n, (_, text, _) in enumerate(questions)}
    differences = {str(n): number / 10 for n, (_, _, number) in enumerate(questions)}
    squad, figures = squad_of(answers), {}
    for threshold in (min(differences.values()) - 1, *differences.values()):
        decided = decide(predictions, differences, threshold)
        figures[threshold] = evaluate_predictions(squad, decided)["f1"]
        # The official way to the same figures.
        official = evaluate_predictions(squad, predictions, differences, threshold)
        assert official["f1"] == pytest.approx(figures[threshold])
    tuned = tune_null_threshold(squad, predictions, differences)
    assert figures[tuned] == pytest.approx(max(figures.values()))
    assert official["best_f1"] == pytest.approx(max(figures.values()))
