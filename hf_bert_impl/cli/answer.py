"""`hf-bert answer`: extracts answers to questions from a text."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, ClassVar

from rich.text import Text

from hf_bert_impl.cli.bulk import JobOptions, PartOptions, run_job
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import OPTIONAL
from hf_bert_impl.cli.output_checks import check_output_file
from hf_bert_impl.cli.shared_options import only, refuse_unused
from hf_bert_impl.errors import InputError
from hf_bert_impl.files.atomic import atomic_file
from hf_bert_impl.files.json_files import to_json
from hf_bert_impl.files.text import check_text_file, decode, read_text
from hf_bert_impl.inference.answer_options import AnswerOptions
from hf_bert_impl.tables import console, print_table

#: Characters of context printed on either side of an answer.
AROUND = 24


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer(AnswerOptions, PartOptions):
    """Extract answers to questions from a text, with their positions.

    With FILE the answers are JSON lines, with the ids of the input lines. Each line has its
    context, unless --context or --context-file gives one for all lines.

    An OUTPUT in .parquet, or a folder of part-*.parquet, has the columns id, answer, score, start
    and end. Rows that are invalid go to rejects.jsonl. If interrupted, run the same command again
    to resume.

    Example: hf-bert answer MODEL --question "Who naps?" --context "Anna's cat naps."
    """

    SETTINGS: ClassVar = (
        *("max_question_len", "doc_stride", "align_to_words", "null_score_diff_threshold"),
        "part_size",
    )

    model: str
    file: str | None = dataclasses.field(default=None, metadata=OPTIONAL)
    """A .jsonl, .json, .csv, .tsv or .parquet with question, context and an optional id. - is
    standard input. With a .parquet or a folder as OUTPUT also a folder of such files."""
    question: tuple[str, ...] = ()
    """A question; may be repeated."""
    context: str | None = None
    """The text with the answer."""
    context_file: str | None = None
    """A file with that text; - for standard input."""
    output: Path | None = None
    """A .jsonl or .parquet to write, or a folder (a name without an ending); None for standard
    output."""
    dtype: str | None = None
    batch_invariant: bool = False
    id_column: str | None = None
    """Column of unique ids, texts or integers; None for row numbers from 0."""
    overwrite: bool = False
    as_json: bool = False
    """Print one JSON object per question."""
    quiet: bool = False
    """Show no progress."""

    def run(self) -> None:
        """Answers the questions."""
        if self.file == self.context_file == "-":
            raise InputError("FILE and --context-file are both -. Save one of them to a file.")
        options = dataclasses.asdict(only(AnswerOptions, self))
        output = self.output
        if self.file is not None and output is not None and output.suffix in ("", ".parquet"):
            where = "with a .parquet or a folder as `output`"
            refuse_unused(self, where, "question", "context", "context_file", "top_k")
            del options["top_k"]
            columns = ("question", "context")
            run_job("Answer", only(JobOptions, self), columns, {"dtype": self.dtype, **options})
            return
        parts = ("workers", "address", "part_size", "id_column", "engine", "resume")
        refuse_unused(self, "without FILE and a .parquet or a folder as `output`", *parts)
        shared = read_context(self.context, self.context_file)
        if bool(self.file) == bool(self.question):
            raise InputError("Give either FILE or --question.")
        if self.question and shared is None:
            raise InputError(
                "A question needs a text with its answer. Add --context TEXT or --context-file "
                "FILE."
            )
        if output is not None:
            sources = [name for name in (self.file, self.context_file) if name is not None]
            endings = (".jsonl", ".json")
            check_output_file("--output", output, self.overwrite, endings=endings, sources=sources)
        self._print(shared, options)

    def _print(self, shared: str | None, options: dict[str, Any]) -> None:
        from hf_bert_impl.inference.question_file import check_record, read_questions

        total, questions = None, []
        if self.file is None:
            questions = [{"question": text, "context": shared or ""} for text in self.question]
            for item in questions:
                check_record(item, "the command")
        elif self.file != "-":
            # Checks every line before the model is loaded.
            total = sum(1 for _ in read_questions(self.file, shared))
        with quiet_libraries():
            from hf_bert_impl.inference.question_answering import QuestionAnsweringPipeline
            from hf_bert_impl.inference.question_file import answer_records
            from hf_bert_impl.progress import text_progress

            pipeline = QuestionAnsweringPipeline.from_pretrained(
                self.model, dtype=self.dtype, batch_invariant=self.batch_invariant, **options
            )
            records = iter(questions) if self.file is None else read_questions(self.file, shared)
            progress = text_progress(self.file is not None and not self.quiet, total)
            with writer(self.output) as stream, progress as advance:
                for record, answers in answer_records(pipeline, records):
                    if self.file is not None or self.as_json or self.output is not None:
                        asked = {key: record[key] for key in ("id", "question") if key in record}
                        stream.write(to_json({**asked, "answers": answers}) + "\n")
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
