"""SQuAD: its files as questions, and questions as examples to train on.

The format is that of Rajpurkar et al. 2016 (v1.1, every question has an answer in its context) and
2018 (v2.0, some have none). `windows` cuts questions and contexts into the model's inputs, and
`answer_spans` turns the model's scores into answers; `read_squad`, `cut_windows` and `best_answers`
are what the pipeline, the evaluation and fine-tuning have in common.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_bert_impl.data.windows import MAX_SEQ_LEN, cut_windows
from hf_bert_impl.errors import InputError
from hf_bert_impl.files.json_files import check_text, read_json

#: Questions whose windows are made at once.
CHUNK = 256


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer as a person marked it."""

    text: str
    start: int
    """Its first character in the context."""

    @property
    def end(self) -> int:
        """The character after its last one."""
        return self.start + len(self.text)


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a context, with the answers that count as right."""

    id: str
    text: str
    context: str
    answers: tuple[Answer, ...]
    """None where the context does not answer it."""


@dataclasses.dataclass(frozen=True)
class Squad:
    """A file of questions."""

    questions: tuple[Question, ...]
    version: int
    """1 where every question is meant to have an answer, 2 otherwise; their metrics differ."""


def read_squad(file: str | Path, *, check_places: bool = True) -> Squad:
    """Reads a file in SQuAD's format.

    Args:
        file: A JSON file of v1.1 or v2.0.
        check_places: Refuse answers that do not stand in the context where they are said to. Not
            needed for scoring, which compares texts.

    Returns:
        The questions in order. The version is that of the file, or 2 where it names none and a
        question has `is_impossible` or no answer.

    Raises:
        ValueError: There is no such file, it is not SQuAD or has no questions, an id is there
            twice, or an answer is not at its place; the message names the question.
    """
    path = Path(file).expanduser()
    content = read_json(path, "a file in SQuAD's format", kind=object)
    articles = content.get("data") if isinstance(content, dict) else None
    if not isinstance(articles, list):
        raise InputError(
            f"{path} is JSON, but not SQuAD",
            "an object with a list 'data' of articles, which hold 'paragraphs' with 'context' and "
            "'qas'",
            "give such a file",
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
    if not questions:
        raise InputError(f"{path} holds no questions", "one or more", "give another file")
    _check_ids(questions, str(path))
    declared = str(content.get("version", "")).lower().removeprefix("v")[:1]
    without = any(not question.answers for question in questions)
    version = int(declared) if declared in ("1", "2") else 1 + (marked or without)
    return Squad(tuple(questions), version)


def questions_from_rows(rows: Iterable[Mapping[str, Any]]) -> list[Question]:
    """Questions out of the rows of a `datasets` data set of the form of "squad" and "squad_v2".

    Args:
        rows: Each with `id`, `question`, `context` and `answers`, which holds the lists `text` and
            `answer_start`.

    Returns:
        A question a row.

    Raises:
        ValueError: A column is missing, an id is there twice, or an answer is not at its place.
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
                f"{len(texts)} texts and {len(starts)} places of answers in row {number}",
                "as many of both",
                "mend the row",
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
    """What `BertForQuestionAnswering` learns from: an example a window.

    The first answer of a question is learnt. A window that does not hold the whole of it, or
    belongs to a question without answer, points to [CLS] (position 0), as in run_squad.py.

    Args:
        tokenizer: See `windows.cut_windows`, as for the other arguments.
        questions: From `read_squad` or `questions_from_rows`.
        max_seq_len: Most tokens of a window.
        doc_stride: Tokens that neighbouring windows share.

    Yields:
        `input_ids` and `token_type_ids`, lists without padding, and the numbers `start_positions`
        and `end_positions`; the windows of a question follow each other in order.

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
            raise InputError(f"the {name} of {where} is empty", "a text", "mend the entry")
    answers = []
    for given in _field(entry, "answers", list, where):
        start = _field(given, "answer_start", int, f"an answer to {where}") if check_places else 0
        answer = Answer(_field(given, "text", str, f"an answer to {where}"), start)
        if check_places:
            _check_place(answer, context, where)
        answers.append(answer)
    if entry.get("is_impossible") is True and answers:
        raise InputError(
            f"{where} is marked is_impossible and has answers", "one or the other", "mend it"
        )
    return Question(identity, text, context, tuple(answers))


def _check_place(answer: Answer, context: str, where: str) -> None:
    if not answer.text.strip():
        raise InputError(f"an answer to {where} is empty", "a piece of its context", "mend it")
    there = context[answer.start : answer.end] if answer.start >= 0 else ""
    if there == answer.text:
        return
    places = [n for n in range(len(context)) if context.startswith(answer.text, n)]
    nearest = min(places, key=lambda place: abs(place - answer.start), default=None)
    mend = "it is nowhere in the context" if nearest is None else f"it stands at {nearest}"
    raise InputError(
        f"the answer {answer.text[:60]!r} to {where} is not at its answer_start {answer.start}, "
        f"where the context has {there[:60]!r}",
        f"the place of the answer, and {mend}",
        "mend the entry",
    )


def _check_ids(questions: Sequence[Question], where: str) -> None:
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise InputError(
                f"the id {question.id!r} is there twice in {where}",
                "one question an id",
                "rename or remove one",
            )
        seen.add(question.id)


def _field(record: Any, name: str, kind: type, where: str) -> Any:
    if not isinstance(record, Mapping):
        raise InputError(
            f"{where} is a {type(record).__name__}",
            f"an object with {name!r}",
            "is this file in SQuAD's format?",
        )
    value = record.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        problem = "is not there" if name not in record else f"is a {type(value).__name__}"
        raise InputError(
            f"{name!r} of {where} {problem}",
            f"a {kind.__name__}",
            "mend the entry, or give a file in SQuAD's format",
        )
    if isinstance(value, str):
        check_text(value, f"{name!r} of {where}")
    return value
