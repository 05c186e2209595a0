"""Options and output of commands that process many rows."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import typer

from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import BatchInvariant, Dtype
from hf_bert_impl.cli.output_checks import check_output_file
from hf_bert_impl.data.text_input import Columns, find_inputs
from hf_bert_impl.data.vector_table import PRECISIONS
from hf_bert_impl.errors import InputError, check_choice
from hf_bert_impl.extras import require
from hf_bert_impl.files.json_files import to_json

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
    """How a job is computed."""

    id_column: str | None = None
    """Column of unique ids, texts or integers; None for row numbers from 0."""
    overwrite: bool = False
    """Replace the output if it exists."""
    part_size: int | None = dataclasses.field(default=None, metadata={"min": 1})
    """Rows per part, the most that an interruption loses; None for 10000, or 2000 for a file."""
    engine: str = dataclasses.field(default="local", metadata={"choices": ("local", "ray")})
    """local, or ray to compute a folder on Ray workers."""
    workers: int = dataclasses.field(default=1, metadata={"min": 1})
    """Number of Ray workers."""
    address: str | None = None
    """Address of a Ray cluster, such as 10.0.0.1:6379, or auto; None for this machine."""
    resume: bool = False
    """Accept a finished output. Interrupted runs always resume."""


def run(
    task: str,
    source: str,
    output: Path,
    columns: Columns,
    options: dict[str, Any],
    where: JobOptions,
    *,
    endings: tuple[str, ...] = (".parquet",),
    precision: str = "float32",
    as_json: bool,
    quiet: bool,
) -> None:
    """Run a job, and print its summary.

    Args:
        task: The class of `hf_bert_impl.distributed` that computes it.
        source: FILE, or a folder of files.
        output: The folder of the parts, or a file.
        columns: The columns of the texts.
        options: The arguments of the task.
        where: The parts and the engine.
        endings: The endings of a file; other names are folders.
        precision: The storage type of vectors.
        as_json: Print the summary as JSON.
        quiet: Show neither progress nor summary.
    """
    check_choice("engine", where.engine, ("local", "ray"))
    check_output(source, output, where, endings)
    inputs = find_inputs(source)
    if output.suffix != ".npy":
        require("pyarrow", "train", "writing Parquet")
    folder = Path(options["model"]).expanduser()
    if folder.is_dir():  # workers begin in other folders
        options["model"] = str(folder.absolute())
    with quiet_libraries():
        from hf_bert_impl import distributed
        from hf_bert_impl.distributed.job import Job
        from hf_bert_impl.distributed.run import run_job

        job = Job(
            getattr(distributed, task),
            options,
            inputs,
            output.absolute(),
            columns,
            where.id_column,
            where.part_size,
            precision,
        )
        try:
            report = run_job(
                job,
                resume=where.resume,
                overwrite=where.overwrite,
                progress=not quiet,
                ray=(where.workers, where.address) if where.engine == "ray" else None,
            )
        except KeyboardInterrupt:
            if any(job.folder.glob("part-*")) and not quiet:
                typer.echo("interrupted; run the same command again to resume", err=True)
            raise
    if as_json:
        typer.echo(to_json(report | {"engine": where.engine, "workers": where.workers}))
    elif report["finished"] and not quiet:
        typer.echo(f"{output} is finished")
    elif not quiet:
        tokens = report["tokens_per_second"]
        speed = f"{report['texts_per_second']:,.0f} texts"
        speed += "" if tokens is None else f" and {tokens:,.0f} tokens"
        typer.echo(
            f"{output}: {report['rows']:,} rows in {report['parts']} parts, "
            f"{report['rejected']:,} rejected; {speed} per second; {report['precision']}"
        )


def check_output(source: str, output: Path, where: JobOptions, endings: tuple[str, ...]) -> None:
    """Checks the output's name before anything is read.

    Raises:
        InputError: It has another ending, contains the input, or is in the folder of texts; or the
            engine cannot write it.
    """
    place, given = output.resolve(), Path(source).expanduser().resolve()
    if source != "-" and place in (given, *given.parents) and not output.is_file():
        raise InputError(f"The input {source} is inside --output {output}. Choose another output.")
    if source != "-" and given.is_dir() and given in place.parents:  # a resumed run would read it
        raise InputError(
            f"--output {output} is in {source}, whose files are all read as texts. Choose a place "
            "outside it."
        )
    if output.suffix and output.suffix not in endings and not output.is_dir():
        raise InputError(
            f"--output is {output}. End the name in {' or '.join(endings)}, or give a folder "
            "without an ending."
        )
    if where.engine == "local" and (where.workers != 1 or where.address is not None):
        raise InputError("--workers and --address need Ray. Add --engine ray.")
    if where.engine == "ray":
        if source == "-":
            raise InputError("--engine ray cannot read standard input. Save it to a file.")
        if output.suffix in endings:
            raise InputError(
                f"--engine ray writes a folder, and --output is {output.name}. Remove the ending."
            )
        require("ray", "ray", "the engine 'ray'")
    if output.suffix in endings:
        others = [
            output.with_name(f"{output.name}{ending}") for ending in (".parts", ".rejects.jsonl")
        ]
        overwrite = where.overwrite or where.resume
        check_output_file("--output", output, overwrite, sources=[source], others=others)
