"""`hf-bert answer`: extracts answers to questions from a text."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from rich.text import Text

from hf_bert_impl import checkpoints
from hf_bert_impl.cli.bulk import PANELS, JobOptions, run
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import (
    BatchInvariant,
    Dtype,
    Model,
    Quiet,
    from_dataclass,
    refuse_unused,
    taken,
)
from hf_bert_impl.cli.output_checks import check_output_file
from hf_bert_impl.errors import InputError
from hf_bert_impl.files.atomic import atomic_file
from hf_bert_impl.files.json_files import to_json
from hf_bert_impl.files.text import check_text_file, decode, read_text
from hf_bert_impl.inference.answer_options import AnswerOptions
from hf_bert_impl.tables import console, print_table

#: Characters of context printed on either side of an answer.
AROUND = 24


@from_dataclass(AnswerOptions, JobOptions, panels=PANELS)
def answer(
    fields: dict[str, Any],
    command: typer.Context,
    model: Model,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]",
            help="A .jsonl, .json, .csv, .tsv or .parquet with question, context and an "
            "optional id. - is standard input. With an output folder also a folder of such files.",
        ),
    ] = None,
    question: Annotated[list[str] | None, typer.Option(help="A question; may be repeated.")] = None,
    context: Annotated[str | None, typer.Option(help="The text with the answer.")] = None,
    context_file: Annotated[
        str | None, typer.Option(help="A file with that text; - for standard input.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The .jsonl to write, or a folder (a name without an ending).",
            show_default="standard output",
        ),
    ] = None,
    dtype: Dtype = None,
    batch_invariant: BatchInvariant = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per question.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Extract answers to questions from a text, with their positions.

    With FILE the answers are JSON lines, with the ids of the input lines. Each line has its
    context, unless --context or --context-file gives one for all lines.

    An OUTPUT without an ending is a folder of part-*.parquet with the columns id, answer, score,
    start and end. Rows that are invalid go to its rejects.jsonl. If interrupted, run the same
    command again to resume.

    Example: hf-bert answer MODEL --question "Who naps?" --context "Anna's cat naps."
    """
    if file == context_file == "-":
        raise InputError("FILE and --context-file are both -. Save one of them to a file.")
    from hf_bert_impl.inference.question_file import check_record, read_questions

    where = taken(JobOptions, fields)
    if file is not None and output is not None and not output.suffix:
        refuse_unused(
            command, "with an output folder", "question", "context", "context_file", "top_k"
        )
        del fields["top_k"]
        options = {"model": model, "dtype": dtype, **fields}
        columns = ("question", "context")
        run("Answer", file, output, columns, options, where, as_json=as_json, quiet=quiet)
        return
    in_parts = ("workers", "address", "part_size", "id_column", "engine", "resume")
    refuse_unused(command, "without FILE and an output folder", *in_parts)
    shared = read_context(context, context_file)
    if bool(file) == bool(question):
        raise InputError("Give either FILE or --question.")
    if question and shared is None:
        raise InputError(
            "A question needs a text with its answer. Add --context TEXT or --context-file FILE."
        )
    if output is not None:
        sources = [name for name in (file, context_file) if name is not None]
        check_output_file("--output", output, where.overwrite, sources=sources)
    total, questions = None, []
    if file is None:
        questions = [{"question": text, "context": shared or ""} for text in question or []]
        for item in questions:
            check_record(item, "the command")
    elif file != "-":
        # Checks every line before the model is loaded.
        total = sum(1 for _ in read_questions(file, shared))
    with quiet_libraries():
        from hf_bert_impl.inference.question_answering import QuestionAnsweringPipeline
        from hf_bert_impl.inference.question_file import answer_records
        from hf_bert_impl.progress import text_progress

        checkpoint = checkpoints.open_checkpoint(model, True, any_family=True)
        pipeline = QuestionAnsweringPipeline.from_pretrained(
            checkpoint.path, dtype=dtype, batch_invariant=batch_invariant, **fields
        )

        records = iter(questions) if file is None else read_questions(file, shared)
        progress = text_progress(file is not None and not quiet, total)
        with writer(output) as stream, progress as advance:
            for record, answers in answer_records(pipeline, records):
                if file is not None or as_json or output is not None:
                    asked = {key: record[key] for key in ("id", "question") if key in record}
                    line = to_json({**asked, "answers": answers})
                    stream.write(line + "\n")
                else:
                    print_answers(record["question"], record["context"], answers)
                advance(1)


def read_context(context: str | None, context_file: str | None) -> str | None:
    """The context for all questions, or None.

    Raises:
        InputError: It is given twice, is empty, or is not UTF-8.
    """
    if context_file is None:
        if context is not None and not context.strip():
            raise InputError("--context is empty. Give the text that has the answer.")
        return context
    if context is not None:
        raise InputError("--context and --context-file exclude each other. Leave one out.")
    if context_file == "-":
        text = decode(sys.stdin.buffer.read(), "standard input")
    else:
        path = Path(context_file).expanduser()
        check_text_file(path, "a text as --context-file")
        text = read_text(path)
    if not text.strip():
        raise InputError(f"{context_file} is empty. Give another --context-file.")
    return text


@contextlib.contextmanager
def writer(output: Path | None) -> Iterator[IO[str]]:
    """Standard output, or a file that appears when it is complete."""
    if output is None:
        yield sys.stdout
        return
    with (
        atomic_file(output.absolute()) as fresh,
        fresh.open("w", encoding="utf-8", newline="\n") as stream,
    ):
        yield stream


def print_answers(question: str, context: str, answers: list[dict[str, Any]]) -> None:
    """Prints the answers to a question in their context, best first."""
    rows = []
    for rank, item in enumerate(answers, start=1):
        start, end = item["start"], item["end"]
        left, right = max(start - AROUND, 0), min(end + AROUND, len(context))
        cells: tuple[str | Text, ...] = (
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
            cells = (Text("no answer", "dim"), cells[1], "", "")
        rows.append((Text(str(rank), "dim"), *cells))
    columns = ("", "answer", "score", "characters", "in the text")
    print_table(console(), flat(question), columns, rows, words=(1, 4))


def flat(text: str) -> str:
    """A text on one line, its length unchanged."""
    return "".join(" " if letter.isspace() else letter for letter in text)
