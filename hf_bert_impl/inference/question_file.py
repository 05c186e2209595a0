"""Files of questions: JSON lines in, and each line with its answers out."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_bert_impl.errors import InputError
from hf_bert_impl.files.json_files import check_text, parse_json
from hf_bert_impl.files.text import check_text_file, decode_lines

if TYPE_CHECKING:
    from hf_bert_impl.inference.question_answering import QuestionAnsweringPipeline


def read_questions(file: str, context: str | None) -> Iterator[dict[str, Any]]:
    """Read JSON lines.

    Args:
        file: A path, or `-` for standard input.
        context: The context of lines without one.

    Yields:
        The record of each line that is not empty, with `question` and `context`.

    Raises:
        ValueError: There is no such file, no question in it, or a line is of another form.
    """
    name = "standard input" if file == "-" else file
    path = Path(file).expanduser()
    if file != "-":
        check_text_file(path, "JSON lines, or -")
    number = 0
    with contextlib.ExitStack() as stack:
        stream = sys.stdin.buffer if file == "-" else stack.enter_context(path.open("rb"))
        for line, content in decode_lines(stream, name):
            if not content.strip():
                continue
            number += 1
            where = f"line {line} of {name}"
            record = parse_json(content, where, "one object a line")
            if context is not None:
                record.setdefault("context", context)
            check_record(record, where)
            check_text(record.get("id"), f"the id in {where}")
            yield record
    if not number:
        raise InputError(f"{name} is empty", "a question a line", "give a file with questions")


def check_record(record: Any, where: str) -> None:
    """Check that a record asks something.

    Raises:
        InputError: It lacks a question or a context, or one of them is empty.
    """
    for key in ("question", "context"):
        value = record.get(key) if isinstance(record, dict) else None
        what = "has an empty" if isinstance(value, str) else "has no"
        if isinstance(value, str) and value.strip():
            if not any("\ud800" <= letter <= "\udfff" for letter in value):
                continue
            what = "has half a surrogate pair in its"
        remedy = "give the context of all lines as `context`" if key == "context" else "add it"
        raise InputError(f"{where} {what} {key!r}", "a question and a context, both texts", remedy)


def answer_records(
    pipeline: QuestionAnsweringPipeline, records: Iterable[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each record of `read_questions` with its answers, in order; few are read ahead."""
    asked: deque[dict[str, Any]] = deque()

    def remembered() -> Iterator[dict[str, Any]]:
        for record in records:
            asked.append(record)
            yield record

    for answers in pipeline(remembered()):
        yield asked.popleft(), answers if isinstance(answers, list) else [answers]
