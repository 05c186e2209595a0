"""SQuAD: its files as questions, and questions as training examples.

The format follows Rajpurkar et al. 2016 (v1.1, every question has an answer in its context) and
2018 (v2.0, some have none).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_bert_impl.data.windows import MAX_SEQ_LEN, cut_windows
from hf_bert_impl.errors import InputError, kind_of
from hf_bert_impl.files.json_files import check_text, read_json

#: Questions per call of `cut_windows`.
CHUNK = 256


@dataclasses.dataclass(frozen=True)
class Answer:
    """A marked answer; `start` is its first character in the context."""

    text: str
    start: int

    @property
    def end(self) -> int:
        """The character after its last one."""
        return self.start + len(self.text)


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a context, with its right answers; empty where the context has none."""

    id: str
    text: str
    context: str
    answers: tuple[Answer, ...]


@dataclasses.dataclass(frozen=True)
class Squad:
    """A file's questions, and its version: 1 if every question must have an answer, otherwise 2."""

    questions: tuple[Question, ...]
    version: int


def read_squad(file: str | Path, *, check_places: bool = True) -> Squad:
    """Reads a JSON file in SQuAD's format.

    Args:
        file: v1.1 or v2.0.
        check_places: Reject answers that are not at their place in the context. Scoring compares
            texts and does not need it.

    Returns:
        The questions in order. Without a version in the file, it is 2 if a question has
        `is_impossible` or no answer.

    Raises:
        ValueError: The file is missing, has another format or no questions, an id occurs twice, or
            an answer is not at its place.
    """
    path = Path(file).expanduser()
    content = read_json(path, "a file in SQuAD's format", kind=object)
    articles = content.get("data") if isinstance(content, dict) else None
    if not isinstance(articles, list):
        raise InputError(
            f"{path} is JSON, but not SQuAD. Give an object whose 'data' lists articles with "
            "'paragraphs' of 'context' and 'qas'."
        )
    questions, marked = [], False
    for number, article in enumerate(articles):
        where = f"data[{number}] of {path}"
        for place, paragraph in enumerate(_field(article, "paragraphs", list, where)):
            within = f"paragraph {place} of {where}"
            context = _field(paragraph, "context", str, within)
            for entry in _field(paragraph, "qas", list, within):
                identity = _field(entry, "id", str, f"a question in {within}")
                marked = marked or "is_impossible" in entry
                named = f"question {identity} of {path}"
                questions.append(_question(entry, identity, context, named, check_places))
    _check_ids(questions, str(path))
    declared = str(content.get("version", "")).lower().removeprefix("v")[:1]
    without = any(not question.answers for question in questions)
    version = int(declared) if declared in ("1", "2") else 1 + (marked or without)
    return Squad(tuple(questions), version)


def questions_from_rows(rows: Iterable[Mapping[str, Any]]) -> list[Question]:
    """Questions from rows of a `datasets` data set in the form of "squad" and "squad_v2".

    Args:
        rows: With `id`, `question`, `context` and `answers`, whose lists are `text` and
            `answer_start`.

    Raises:
        ValueError: A column is missing, an id occurs twice, or an answer is not at its place.
    """
    questions = []
    for number, row in enumerate(rows):
        identity = _field(row, "id", str, f"row {number}")
        context = _field(row, "context", str, f"row {number}")
        answers = _field(row, "answers", dict, f"row {number}")
        starts = _field(answers, "answer_start", list, f"the answers of row {number}")
        texts = _field(answers, "text", list, f"the answers of row {number}")
        if len(texts) != len(starts):
            raise InputError(
                f"{len(texts)} texts and {len(starts)} places of answers in row {number}. Give as "
                "many of both."
            )
        pairs = zip(texts, starts, strict=True)
        entry = {
            "question": row.get("question"),
            "answers": [{"text": text, "answer_start": start} for text, start in pairs],
        }
        questions.append(_question(entry, identity, context, f"question {identity}", True))
    _check_ids(questions, "the data set")
    return questions


def training_features(
    tokenizer: Any,
    questions: Sequence[Question],
    *,
    max_seq_len: int = MAX_SEQ_LEN,
    doc_stride: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Training examples for `BertForQuestionAnswering`, one per window.

    The first answer of a question is the label. A window without the whole answer, or of a question
    without answer, points to [CLS] (position 0), as in run_squad.py.

    Args:
        tokenizer: See `windows.cut_windows`, also for the lengths.
        questions: From `read_squad` or `questions_from_rows`.
        max_seq_len: Maximum tokens of a window.
        doc_stride: Tokens that neighbouring windows share.

    Yields:
        `input_ids` and `token_type_ids` without padding, `start_positions` and `end_positions`, in
        the order of questions and windows.

    Raises:
        ValueError: See `windows.cut_windows`.
    """
    for begin in range(0, len(questions), CHUNK):
        chunk = questions[begin : begin + CHUNK]
        cut = cut_windows(
            tokenizer,
            [(question.text, question.context) for question in chunk],
            max_seq_len=max_seq_len,
            doc_stride=doc_stride,
        )
        for question, windows in zip(chunk, cut, strict=True):
            answer = question.answers[0] if question.answers else None
            for window in windows:
                place = window.positions(answer.start, answer.end) if answer else None
                start, end = place or (0, 0)
                yield {
                    "input_ids": window.input_ids,
                    "token_type_ids": window.token_type_ids,
                    "start_positions": start,
                    "end_positions": end,
                }


def _question(
    entry: Mapping[str, Any], identity: str, context: str, where: str, check_places: bool
) -> Question:
    text = _field(entry, "question", str, where)
    for name, value in (("question", text), ("context", context)):
        if not value.strip():
            raise InputError(f"the {name} of {where} is empty. Fill or remove it.")
    answers = []
    for given in _field(entry, "answers", list, where):
        start = _field(given, "answer_start", int, f"an answer to {where}") if check_places else 0
        answer = Answer(_field(given, "text", str, f"an answer to {where}"), start)
        if check_places:
            _check_place(answer, context, where)
        answers.append(answer)
    if entry.get("is_impossible") is True and answers:
        raise InputError(f"{where} is marked is_impossible and has answers. Remove one of the two.")
    return Question(identity, text, context, tuple(answers))


def _check_place(answer: Answer, context: str, where: str) -> None:
    if not answer.text.strip():
        raise InputError(f"an answer to {where} is empty. Give a piece of its context.")
    there = context[answer.start : answer.end] if answer.start >= 0 else ""
    if there == answer.text:
        return
    places = [n for n in range(len(context)) if context.startswith(answer.text, n)]
    nearest = min(places, key=lambda place: abs(place - answer.start), default=None)
    remedy = "It is nowhere in the context." if nearest is None else f"It begins at {nearest}."
    raise InputError(
        f"the answer {answer.text[:60]!r} to {where} is not at its answer_start {answer.start}, "
        f"where the context has {there[:60]!r}. {remedy}"
    )


def _check_ids(questions: Sequence[Question], where: str) -> None:
    if not questions:
        raise InputError(f"{where} holds no questions. Give another file.")
    name, count = Counter(question.id for question in questions).most_common(1)[0]
    if count > 1:
        raise InputError(f"the id {name!r} is there twice in {where}. Rename or remove one.")


def _field(record: Any, name: str, kind: type, where: str) -> Any:
    if not isinstance(record, Mapping):
        raise InputError(
            f"{where} is {kind_of(record)}. Give an object with {name!r}, as SQuAD has it."
        )
    value = record.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        problem = "is not there" if name not in record else f"is {kind_of(value)}"
        raise InputError(f"{name!r} of {where} {problem}. Give a {kind.__name__}, as SQuAD has it.")
    if isinstance(value, str):
        check_text(value, f"{name!r} of {where}")
    return value
