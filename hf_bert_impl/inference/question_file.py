"""Read files of questions, and answer them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from hf_bert_impl.data.text_input import read_records, sound
from hf_bert_impl.errors import InputError
from hf_bert_impl.files.json_files import check_text

if TYPE_CHECKING:
    from hf_bert_impl.inference.question_answering import QuestionAnsweringPipeline


def read_questions(file: str, context: str | None) -> Iterator[dict[str, Any]]:
    """Reads the columns or fields `question`, `context` and `id`.

    Args:
        file: As for `read_records`; `-` is standard input.
        context: The context of records without one.

    Yields:
        The record of each question, with its `id` if it has one.

    Raises:
        ValueError: The file is missing, empty or damaged.
    """
    is_empty = True
    rows = read_records(file, ("question", "context"), "id", optional=True)
    for row in sound(rows, file):
        place, (question, given), identifier = row.place, row.values, row.id
        is_empty = False
        record = {"question": question, "context": context if given is None else given}
        check_record(record, place)
        check_text(identifier, f"the id in {place}")
        yield record if identifier is None else record | {"id": identifier}
    if is_empty:
        name = "Standard input" if file == "-" else file
        raise InputError(f"{name} is empty. Write one question per line.")


def check_record(record: Any, where: str) -> None:
    """Raises InputError if a record's question or context is missing, empty or damaged."""
    for key in ("question", "context"):
        value = record.get(key) if isinstance(record, dict) else None
        what = "has an empty" if isinstance(value, str) else "has no"
        if isinstance(value, str) and value.strip():
            if not any("\ud800" <= letter <= "\udfff" for letter in value):
                continue
            what = "has half a surrogate pair in its"
        remedy = "Add it, or give one `context` for all questions" if key == "context" else "Add it"
        raise InputError(f"{where} {what} {key!r}. {remedy}.", "context")


def answer_records(
    pipeline: QuestionAnsweringPipeline, records: Iterable[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each record of `read_questions` with its answers, in order."""
    asked, given = itertools.tee(records)
    for record, answers in zip(given, pipeline(asked), strict=True):
        yield record, answers if isinstance(answers, list) else [answers]
