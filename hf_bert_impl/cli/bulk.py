"""Options and output of commands that work in parts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import BatchInvariant, Dtype
from hf_bert_impl.data.vector_table import PRECISIONS
from hf_bert_impl.errors import InputError
from hf_bert_impl.files.json_files import to_json

if TYPE_CHECKING:
    from hf_bert_impl.data.text_input import Wanted
    from hf_bert_impl.distributed import BatchTask

#: Headings of the help, by the first field below each.
PANELS = {"part_size": "Work in parts"}


@dataclasses.dataclass(frozen=True)
class TextOptions:
    """How texts are read and computed."""

    dtype: Dtype = None
    batch_tokens: int | None = dataclasses.field(default=None, metadata={"min": 1})
    """Maximum number of tokens per batch; None for 4096."""
    normalize: bool = dataclasses.field(
        default=False, metadata={"flags": ("--normalize/--no-normalize",)}
    )
    """Scale vectors to length 1."""
    batch_invariant: BatchInvariant = False
    column: str | None = None
    """Column of the texts: a name, or in a .csv or .tsv without header a number from 0. Plain lines
    are then read as JSON lines, or as .tsv; None for the only column; text, for .jsonl."""
    precision: str = dataclasses.field(default="float32", metadata={"choices": PRECISIONS})
    """float32, float16 or int8. int8 needs a .parquet or a folder: a vector is its integers times
    the column scale."""


@dataclasses.dataclass(frozen=True)
class JobOptions:
    """How a job is split into parts."""

    id_column: str | None = None
    """Column of unique ids, texts or integers; None for row numbers from 0."""
    overwrite: bool = False
    """Replace the output if it exists."""
    part_size: int | None = None
    """Rows per part, the most that an interruption loses; None for 10000, or 2000 for a file."""
    engine: str = dataclasses.field(default="local", metadata={"choices": ("local", "ray")})
    """local, or ray to compute the parts on Ray workers."""
    workers: int = dataclasses.field(default=1, metadata={"min": 1})
    """Number of Ray workers."""
    address: str | None = None
    """Address of a Ray cluster, such as 10.0.0.1:6379, or auto; None for this machine."""
    shard: str | None = dataclasses.field(default=None, metadata={"metavar": "I/N"})
    """Compute share I of N, from 0: N processes share one output folder, without Ray."""
    resume: bool = False
    """Also check the parts of a finished output and repair damaged ones. Interrupted runs always
    resume."""

    def works_in_parts(self, source: str | None, output: Path | None) -> bool:
        """Whether an option needs parts, or source and output are both folders."""
        from hf_bert_impl.distributed.inputs import is_folder_of_files

        is_asked = self.engine != "local" or self.shard is not None or self.resume
        if is_asked or source is None or output is None or output.suffix:
            return is_asked
        return is_folder_of_files(source)


def run_in_parts(
    task: type[BatchTask],
    source: str,
    output: Path,
    columns: Wanted,
    options: dict[str, Any],
    where: JobOptions,
    *,
    precision: str = "float32",
    as_json: bool,
    quiet: bool,
    is_file: bool = False,
) -> None:
    """Run a job in parts, and print its summary.

    Args:
        task: The computation.
        source: FILE, or a folder of files.
        output: The folder of the parts, or the file they are joined into.
        columns: The columns of the texts.
        options: The arguments of `task`.
        where: The parts and the engine.
        precision: The storage type of vectors.
        as_json: Print the summary as JSON.
        quiet: Show neither progress nor summary.
        is_file: Join the parts into one file.
    """
    with quiet_libraries():
        from hf_bert_impl.distributed.bulk import Engine, run_job
        from hf_bert_impl.distributed.inputs import find_inputs, is_folder_of_files
        from hf_bert_impl.distributed.parts import FILE_PART_ROWS, PART_ROWS, BulkJob

        engine = Engine(where.engine, where.workers, where.address, parse_shard(where.shard))
        folder = Path(options["model"]).expanduser()
        if folder.is_dir():  # workers begin in other folders
            options["model"] = str(folder.absolute())
        if is_folder_of_files(source):
            check_beside(Path(source).expanduser(), output)
        job = BulkJob(
            find_inputs(source),
            output.absolute(),
            task,
            options,
            columns,
            where.id_column,
            where.part_size or (FILE_PART_ROWS if is_file else PART_ROWS),
            precision,
            is_file,
        )
        try:
            report = run_job(
                job,
                engine,
                resume=where.resume,
                overwrite=where.overwrite,
                progress=not quiet,
            )
        except KeyboardInterrupt:
            if job.has_entries() and not quiet:
                typer.echo("interrupted; run the same command again to resume", err=True)
            raise
    if as_json:
        typer.echo(to_json(report))
    elif not quiet:
        computed = f"; {report['precision']}" if report["precision"] else ""
        rest = "" if report["complete"] else "; other shards are unfinished"
        typer.echo(
            f"{output}: {report['rows']:,} rows in {report['parts_made']} of {report['parts']} "
            f"parts, {report['rejected']:,} rejected; {report['texts_per_second']:,.0f} texts and "
            f"{report['tokens_per_second']:,.0f} tokens per second{computed}{rest}"
        )


def check_beside(folder: Path, output: Path) -> None:
    """Raises InputError if the output is in the folder of texts: a resumed run would read it."""
    if folder.resolve() in output.resolve().parents:
        raise InputError(
            f"--output {output} is in {folder}, whose files are all read as texts. Choose a "
            "place outside it."
        )


def parse_shard(text: str | None) -> tuple[int, int] | None:
    """I/N as numbers."""
    if text is None:
        return None
    index, _, count = text.partition("/")
    if not (index.isascii() and index.isdecimal() and count.isascii() and count.isdecimal()):
        raise InputError(f"`shard` is {text!r}. Give I/N, such as 0/4.")
    return int(index), int(count)
