"""SQuAD's exact match and F1, as the official scripts of v1.1 and v2.0 count them.

Texts are compared in lower case, without ASCII punctuation and the articles a, an and the. F1
compares bags of words. The best of several right answers counts. All scores are times 100
(Rajpurkar et al. 2016, section 6.1; 2018, section 5).
"""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import re
import string
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_bert_impl.data.squad import Question, Squad
from hf_bert_impl.errors import InputError
from hf_bert_impl.files.json_files import check_text, read_json, write_json
from hf_bert_impl.files.output_folder import output_folder
from hf_bert_impl.inference.question_answering import QuestionAnsweringPipeline
from hf_bert_impl.progress import text_progress
from hf_bert_impl.tasks.metrics import Metrics

#: Maximum tokens of an answer, as in run_squad.py.
MAX_ANSWER_LEN = 30
#: The official script's `--na-prob-thresh`.
NA_PROB_THRESHOLD = 1.0

#: Files of `evaluate_checkpoint`: the answers, and for v2.0 the inputs of the threshold's decision.
PREDICTIONS = "predictions.json"
SPANS = "predictions_without_null.json"
DIFFERENCES = "null_score_diffs.json"

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """The form in which answers are compared."""
    bare = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def f1(prediction: str, answer: str, version: int = 2) -> float:
    """The F1 of the words, from 0 to 1; two texts without words agree in v2.0 only."""
    predicted, right = normalize_answer(prediction).split(), normalize_answer(answer).split()
    if not predicted or not right:
        return float(version == 2 and predicted == right)
    common = (collections.Counter(predicted) & collections.Counter(right)).total()
    if common == 0:
        return 0.0
    precision, recall = common / len(predicted), common / len(right)
    return 2 * precision * recall / (precision + recall)


def evaluate_predictions(
    squad: Squad,
    predictions: Mapping[str, str],
    na_probs: Mapping[str, float] | None = None,
    na_prob_threshold: float = NA_PROB_THRESHOLD,
) -> Metrics:
    """Scores predictions.

    Args:
        squad: The questions with their right answers.
        predictions: The text by question id, empty for no answer. A missing one counts as wrong;
            unknown ids are ignored.
        na_probs: By id, the score of having no answer, on any scale.
        na_prob_threshold: Above it a question counts as predicted to have no answer.

    Returns:
        `exact`, `f1` and `total`, also for questions with an answer (`HasAns_exact`, …) and without
        (`NoAns_exact`, …). With `na_probs` also `best_exact` and `best_f1` over all thresholds, and
        the thresholds (`best_exact_thresh`, `best_f1_thresh`).

    Raises:
        ValueError: No prediction belongs to a question, or one has no entry in `na_probs`.
    """
    raw = _raw_scores(squad, predictions)
    if missing := [key for key in raw["exact"] if na_probs is not None and key not in na_probs]:
        raise InputError(
            f"{len(missing)} predicted questions ({missing[0]!r} first) have no no-answer "
            "probability. Complete the file."
        )
    decided = {name: dict(scores) for name, scores in raw.items()}
    for question in squad.questions:
        likely_none = (na_probs or {}).get(question.id, -math.inf) > na_prob_threshold
        if likely_none and question.id in raw["exact"]:
            for scores in decided.values():
                scores[question.id] = float(not question.answers)
    metrics = _averages(decided, squad.questions)
    for prefix, has_answer in (("HasAns", True), ("NoAns", False)):
        part = [question for question in squad.questions if bool(question.answers) == has_answer]
        if part:
            averages = _averages(decided, part)
            metrics |= {f"{prefix}_{name}": value for name, value in averages.items()}
    if na_probs is not None:
        for name, scores in raw.items():
            best, threshold = _best_threshold(squad, predictions, scores, na_probs)
            metrics |= {f"best_{name}": best, f"best_{name}_thresh": threshold}
    return metrics


def tune_null_threshold(
    squad: Squad, predictions: Mapping[str, str], null_score_diffs: Mapping[str, float]
) -> float:
    """The `null_score_diff_threshold` with the best F1.

    Args:
        squad: A development set of v2.0.
        predictions: By id the best answer other than the null answer.
        null_score_diffs: By id the null answer's lead over it.

    Returns:
        The official script's `best_f1_thresh`. If giving no answer is best, a number below all
        differences (officially 0).

    Raises:
        ValueError: As `evaluate_predictions`.
    """
    metrics = evaluate_predictions(squad, predictions, null_score_diffs)
    if metrics["best_f1"] == 100 * metrics.get("NoAns_total", 0) / metrics["total"]:
        return min(null_score_diffs.values()) - 1
    return metrics["best_f1_thresh"]


@dataclasses.dataclass
class Predictions:
    """A model's answers to questions, by id.

    `texts` are the best answers other than the null answer, and `null_score_diffs` its lead over
    them. Above `threshold` the null answer is given (v2.0).
    """

    texts: dict[str, str]
    null_score_diffs: dict[str, float]
    threshold: float

    def score(self, squad: Squad) -> Metrics:
        """The scores of `evaluate_predictions`, for v2.0 with `null_score_diff_threshold`."""
        if squad.version == 1:
            return evaluate_predictions(squad, self.texts)
        metrics = evaluate_predictions(squad, self.texts, self.null_score_diffs, self.threshold)
        return metrics | {"null_score_diff_threshold": self.threshold}


def predict_squad(
    pipeline: QuestionAnsweringPipeline,
    questions: Sequence[Question],
    advance: Callable[[int], Any] = lambda done: None,
    *,
    max_answer_len: int = MAX_ANSWER_LEN,
    **parameters: Any,
) -> Predictions:
    """Answers the questions of SQuAD, with the threshold of the model's config.

    Args:
        pipeline: A model and its tokenizer.
        questions: The questions.
        advance: Called with 1 after each question.
        max_answer_len: Maximum tokens of an answer.
        **parameters: Further ones of `QuestionAnsweringPipeline.find_answers`.
    """
    pairs = [(question.text, question.context) for question in questions]
    answered = pipeline.find_answers(pairs, max_answer_len=max_answer_len, **parameters)
    texts, differences = {}, {}
    for question, answers in zip(questions, answered, strict=True):
        texts[question.id] = answers.text(answers.spans[0])
        differences[question.id] = answers.null_score_diff
        advance(1)
    return Predictions(texts, differences, pipeline.null_score_diff_threshold)


def evaluate_checkpoint(
    path: str,
    squad: Squad,
    *,
    dtype: str | None = None,
    batch_invariant: bool = False,
    null_score_diff_threshold: float | None = None,
    tune_threshold: bool = False,
    output: Path | None = None,
    progress: bool = False,
    **parameters: Any,
) -> Metrics:
    """Answers all questions with a model, and scores the answers.

    Args:
        path: The model: a folder or a hub id.
        squad: The questions with their right answers.
        dtype: Of the computation; None for the checkpoint's.
        batch_invariant: The same bits for a question in any batch.
        null_score_diff_threshold: The null answer's minimum lead in v2.0; None for the model's own.
        tune_threshold: Use the threshold with the best F1, and store it in the model's folder.
        output: A `claimed` folder for the predictions; it is replaced when all are written.
        progress: Show a bar on standard error.
        **parameters: Further ones of `QuestionAnsweringPipeline.find_answers`.

    Returns:
        The scores of `evaluate_predictions`, for v2.0 with the `null_score_diff_threshold`.

    Raises:
        ValueError, OSError: The checkpoint cannot be used, or a number is out of range.
    """
    if squad.version == 1 and (tune_threshold or null_score_diff_threshold is not None):
        name = "tune_threshold" if tune_threshold else "null_score_diff_threshold"
        raise InputError(
            f"`{name}` has no effect on SQuAD v1.1, whose questions all have answers. Leave it "
            "out, or give a v2.0 file as `data`.",
            f"{name} data",
        )
    pipeline = QuestionAnsweringPipeline.from_pretrained(
        path, dtype=dtype, batch_invariant=batch_invariant, **parameters
    )
    with text_progress(progress, len(squad.questions)) as advance:
        predictions = predict_squad(pipeline, squad.questions, advance, **parameters)
    texts, differences = predictions.texts, predictions.null_score_diffs
    if tune_threshold:
        predictions.threshold = tune_null_threshold(squad, texts, differences)
        tuned = {"null_score_diff_threshold": predictions.threshold}
        config = read_json(Path(path) / "config.json", "the config of a model")
        write_json(Path(path) / "config.json", config | tuned)
    elif null_score_diff_threshold is not None:
        predictions.threshold = null_score_diff_threshold
    if output is not None:
        files: dict[str, Any] = {PREDICTIONS: texts}
        if squad.version == 2:
            decided = decide(texts, differences, predictions.threshold)
            files = {PREDICTIONS: decided, SPANS: texts, DIFFERENCES: differences}
        with output_folder(output) as folder:
            for name, content in files.items():
                write_json(folder / name, content)
    return predictions.score(squad)


def decide(
    predictions: Mapping[str, str], null_score_diffs: Mapping[str, float], threshold: float
) -> dict[str, str]:
    """The predictions, empty where the null answer's lead exceeds the threshold."""
    return {
        key: "" if null_score_diffs[key] > threshold else text for key, text in predictions.items()
    }


def read_predictions(file: str | Path) -> dict[str, str]:
    """Reads predictions in the official format: a JSON object of id to text.

    Raises:
        ValueError: The file is missing or has another content.
    """
    return _read_object(file, str, "texts")


def read_na_probs(file: str | Path) -> dict[str, float]:
    """Reads no-answer scores: a JSON object of id to number.

    Raises:
        ValueError: The file is missing or has another content.
    """
    return _read_object(file, (int, float), "numbers")


def _read_object(file: str | Path, kind: Any, what: str) -> dict[str, Any]:
    path = Path(file).expanduser()
    expected = f"a JSON object of question ids to {what}"
    content: dict[str, Any] = read_json(path, expected)
    if not content:
        raise InputError(f"{path} holds an empty dict. Give {expected}.")
    check_text(content, str(path))
    for key, value in content.items():
        wrong = not isinstance(value, kind) or isinstance(value, bool)
        if wrong or (isinstance(value, float) and not math.isfinite(value)):
            shown = json.dumps(value, ensure_ascii=False)[:60]
            raise InputError(f"{path} has {shown} for {key!r}. Give {expected}.")
    return content


def _raw_scores(squad: Squad, predictions: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Exact match and F1 of each question with a prediction, by id."""
    exact, overlap = {}, {}
    for question in squad.questions:
        if question.id not in predictions:
            continue
        prediction = predictions[question.id]
        answers = [answer.text for answer in question.answers]
        if squad.version == 2:
            answers = [text for text in answers if normalize_answer(text)]
        answers = answers or [""]
        normal = normalize_answer(prediction)
        exact[question.id] = float(any(normalize_answer(text) == normal for text in answers))
        overlap[question.id] = max(f1(prediction, text, squad.version) for text in answers)
    if not exact:
        raise InputError(
            f"none of the {len(predictions)} predictions belongs to one of the "
            f"{len(squad.questions)} questions. Give the predictions for these questions."
        )
    return {"exact": exact, "f1": overlap}


def _averages(scores: Mapping[str, Mapping[str, float]], part: Sequence[Question]) -> Metrics:
    # Exact sums do not depend on the order.
    means = {
        name: 100 * math.fsum(values.get(question.id, 0.0) for question in part) / len(part)
        for name, values in scores.items()
    }
    return {**means, "total": len(part)}


def _best_threshold(
    squad: Squad,
    predictions: Mapping[str, str],
    scores: Mapping[str, float],
    na_probs: Mapping[str, float],
) -> tuple[float, float]:
    """The best mean score, times 100, of any threshold on `na_probs`, and the threshold.

    Starts without answers and adds them one by one, the most probable first.
    """
    has_answer = {question.id: bool(question.answers) for question in squad.questions}
    best = current = float(sum(not has_answer[key] for key in scores))
    threshold = 0.0
    for key in sorted(na_probs, key=lambda key: na_probs[key]):
        if key not in scores:
            continue
        if has_answer[key]:
            current += scores[key]
        elif predictions[key]:
            current -= 1
        if current > best:
            best, threshold = current, na_probs[key]
    return 100 * best / len(has_answer), threshold
