"""`hf-bert answer`: answers out of a text, to one question or to a file of them."""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from hf_bert_impl import checkpoints
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import (
    DocStride,
    Dtype,
    MaxAnswerLen,
    MaxQuestionLen,
    MaxSeqLen,
    Model,
    NullThreshold,
    Overwrite,
    Quiet,
)
from hf_bert_impl.cli.output_checks import check_output_file
from hf_bert_impl.errors import InputError
from hf_bert_impl.files.atomic import atomic_file
from hf_bert_impl.files.text import check_text_file, decode, decode_lines, read_text
from hf_bert_impl.tables import console, print_table

if TYPE_CHECKING:
    from hf_bert_impl.inference.question_answering import QuestionAnsweringPipeline

#: Characters of the context that are shown on either side of an answer.
AROUND = 24


def answer(
    model: Model,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]", help="JSON lines with question and context; - reads standard input."
        ),
    ] = None,
    question: Annotated[
        list[str] | None, typer.Option(help="A question; give several by repeating the option.")
    ] = None,
    context: Annotated[str | None, typer.Option(help="The text with the answer.")] = None,
    context_file: Annotated[
        str | None, typer.Option(help="A file with that text; - reads standard input.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Where to write the answers.", show_default="standard output"
        ),
    ] = None,
    overwrite: Overwrite = False,
    top_k: Annotated[int, typer.Option(min=1, help="Most answers a question.")] = 1,
    handle_impossible_answer: Annotated[
        bool | None,
        typer.Option(
            "--handle-impossible-answer/--always-answer",
            help="Whether it is an answer that the text holds none.",
            show_default="whether the model was tuned for it",
        ),
    ] = None,
    null_score_diff_threshold: NullThreshold = None,
    max_answer_len: MaxAnswerLen = 15,
    max_question_len: MaxQuestionLen = 64,
    max_seq_len: MaxSeqLen = None,
    doc_stride: DocStride = None,
    align_to_words: Annotated[
        bool,
        typer.Option("--align-to-words/--no-align-to-words", help="Widen answers to whole words."),
    ] = True,
    dtype: Dtype = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a question, and no table.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Find the answers to questions in a text, and where they stand in it.

    With FILE the answers are JSON lines, with the id of the line where it has one. The context
    stands in the line, or is given for all of them.

    Example: hf-bert answer MODEL --question "Who naps?" --context "Anna's cat naps."
    """
    if file == context_file == "-":
        raise InputError("FILE and --context-file are both -", "one of them", "name a file")
    shared = read_context(context, context_file)
    check_arguments(file, question, shared, context_file, output, overwrite)
    total, questions = None, []
    if file is None:
        questions = [{"question": text, "context": shared or ""} for text in question or []]
        for item in questions:
            check_record(item, "the command")
    elif file != "-":
        total = sum(1 for _ in read_questions(file, shared))  # every line is read before any work
    parameters: dict[str, Any] = {
        "top_k": top_k,
        "handle_impossible_answer": handle_impossible_answer,
        "null_score_diff_threshold": null_score_diff_threshold,
        "max_answer_len": max_answer_len,
        "max_question_len": max_question_len,
        "max_seq_len": max_seq_len,
        "doc_stride": doc_stride,
        "align_to_words": align_to_words,
    }
    with quiet_libraries():
        from hf_bert_impl.inference.progress import text_progress
        from hf_bert_impl.inference.question_answering import QuestionAnsweringPipeline

        checkpoint = checkpoints.open_checkpoint(model)
        checkpoints.require_tokenizer(checkpoint)
        pipeline = QuestionAnsweringPipeline.from_pretrained(
            checkpoint.path, dtype=dtype, **parameters
        )

        records = iter(questions) if file is None else read_questions(file, shared)
        progress = text_progress(file is not None and not quiet, total)
        with notes(), writer(output) as stream, progress as advance:
            for record, answers in answered(pipeline, records):
                if file is not None or as_json or output is not None:
                    asked = {key: record[key] for key in ("id", "question") if key in record}
                    line = json.dumps({**asked, "answers": answers}, ensure_ascii=False)
                    stream.write(line + "\n")
                else:
                    print_answers(record["question"], record["context"], answers)
                advance(1)


def read_context(context: str | None, context_file: str | None) -> str | None:
    """The context that was given for all questions, or None.

    Raises:
        InputError: It is given twice, is empty, or cannot be read.
    """
    if context_file is None:
        if context is not None and not context.strip():
            raise InputError("--context is empty", "a text", "give one")
        return context
    if context is not None:
        raise InputError("--context and --context-file are given", "one of them", "leave one out")
    if context_file == "-":
        text = decode(sys.stdin.buffer.read(), "standard input")
    else:
        path = Path(context_file).expanduser()
        check_text_file(path, "a text as --context-file")
        text = read_text(path)
    if not text.strip():
        raise InputError(f"{context_file} is empty", "a text", "give another --context-file")
    return text


def check_arguments(
    file: str | None,
    question: list[str] | None,
    context: str | None,
    context_file: str | None,
    output: Path | None,
    overwrite: bool,
) -> None:
    """Check what can be checked before anything is loaded.

    Raises:
        InputError: Nothing is asked, or in two ways, or the output cannot be written.
    """
    if bool(file) == bool(question):
        given = "FILE and --question are" if file else "neither FILE nor --question is"
        raise InputError(f"{given} given", "one of them", "see --help")
    if question and context is None:
        raise InputError("no context is given", "a text to look in", "add --context TEXT")
    if output is not None:
        sources = [name for name in (file, context_file) if name is not None]
        check_output_file("--output", output, overwrite, sources=sources)


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
    from hf_bert_impl.model.json_files import check_text, parse_json

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
        remedy = "give the context of all lines with --context" if key == "context" else "add it"
        raise InputError(f"{where} {what} {key!r}", "a question and a context, both texts", remedy)


@contextlib.contextmanager
def notes() -> Iterator[None]:
    """Say on standard error, once, that questions are cut."""
    from hf_bert_impl.data.windows import QuestionCut

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", QuestionCut)
        yield
    cut = [item for item in caught if issubclass(item.category, QuestionCut)]
    if cut:
        typer.echo(f"note: {cut[0].message} (--max-question-len)", err=True)


@contextlib.contextmanager
def writer(output: Path | None) -> Iterator[IO[str]]:
    """Standard output, or a file that appears under its name once it is complete."""
    if output is None:
        yield sys.stdout
        return
    with (
        atomic_file(output.absolute()) as fresh,
        fresh.open("w", encoding="utf-8", newline="\n") as stream,
    ):
        yield stream


def answered(
    pipeline: QuestionAnsweringPipeline, records: Iterator[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each record with its answers, in order."""
    asked: deque[dict[str, Any]] = deque()

    def remembered() -> Iterator[dict[str, Any]]:
        for record in records:
            asked.append(record)
            yield record

    for answers in pipeline(remembered()):
        yield asked.popleft(), answers if isinstance(answers, list) else [answers]


def print_answers(question: str, context: str, answers: list[dict[str, Any]]) -> None:
    """Print the answers to a question, best first, each within its context."""
    from rich.text import Text

    rows = []
    for rank, item in enumerate(answers, start=1):
        start, end = item["start"], item["end"]
        left, right = max(start - AROUND, 0), min(end + AROUND, len(context))
        found: tuple[str | Text, ...] = (
            Text(flat(item["answer"]), "bold"),
            f"{item['score']:.4f}",
            f"{start}–{end}",
            Text.assemble(
                ("…" if left else "") + flat(context[left:start]),
                (flat(context[start:end]), "bold cyan"),
                flat(context[end:right]) + ("…" if right < len(context) else ""),
            ),
        )
        if start == end:
            found = (Text("no answer", "dim"), found[1], "", "")
        rows.append((Text(str(rank), "dim"), *found))
    columns = ("", "answer", "score", "characters", "in the text")
    print_table(console(), flat(question), columns, rows, words=(1, 4))


def flat(text: str) -> str:
    """A text on one line, its length unchanged."""
    return "".join(" " if letter.isspace() else letter for letter in text)
