"""Options and output of commands that process many rows."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, ClassVar

import typer

from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.output_checks import check_output_file
from hf_bert_impl.data.option_ranges import PROCESSES
from hf_bert_impl.data.text_input import Columns, find_inputs
from hf_bert_impl.errors import InputError
from hf_bert_impl.extras import require
from hf_bert_impl.files.atomic import check_rights
from hf_bert_impl.files.json_files import to_json


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartOptions:
    """How a job is computed."""

    PANEL: ClassVar = "Work in parts"
    RANGES: ClassVar = {"workers": PROCESSES}

    part_size: int | None = None
    """Rows per part, the most that an interruption loses; None for 10000, or 2000 for a file."""
    engine: str = dataclasses.field(default="local", metadata={"choices": ("local", "ray")})
    """local, or ray to compute a folder on Ray workers."""
    workers: int = 1
    """Number of Ray workers."""
    address: str | None = None
    """Address of a Ray cluster, such as 10.0.0.1:6379, or auto; None for this machine."""
    resume: bool = False
    """Accept a finished output. Interrupted runs always resume."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobOptions(PartOptions):
    """A job: what is read and written."""

    model: str
    file: str
    """One text per line, or .csv, .tsv, .jsonl, .json (also followed by .gz, .bz2 or .xz) or
    .parquet. A folder of such files or of datasets. - is standard input."""
    output: Path
    """A .parquet to write, or a folder (a name without an ending)."""
    id_column: str | None = None
    """Column of unique ids, texts or integers; None for row numbers from 0."""
    dtype: str | None = None
    overwrite: bool = False
    as_json: bool = False
    quiet: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextOptions:
    """How texts are read and computed."""

    column: str | None = None
    """Column of the texts: a name, or in a .csv or .tsv without header a number from 0. Plain lines
    are then read as JSON lines, or as .tsv; None for the only column; text, for .jsonl."""
    batch_tokens: int | None = None
    """Maximum number of tokens per batch; None for 4096."""


def run_job(
    task: str,
    given: JobOptions,
    columns: Columns,
    options: dict[str, Any],
    endings: tuple[str, ...] = (".parquet",),
    precision: str = "float32",
) -> None:
    """Runs a job, and prints its summary.

    Args:
        task: The class of `hf_bert_impl.distributed` that computes it.
        given: The options of the command.
        columns: The columns of the texts.
        options: The arguments of the task, without the model.
        endings: The endings of a file; other names are folders.
        precision: The storage type of vectors.
    """
    output = given.output
    check_output(given, endings)
    inputs = find_inputs(given.file)
    if output.suffix != ".npy":
        require("pyarrow", "train", "writing Parquet")
    folder = Path(given.model).expanduser()  # workers begin in other folders
    model = str(folder.absolute()) if folder.is_dir() else given.model
    with quiet_libraries():
        from hf_bert_impl.distributed import batch_tasks
        from hf_bert_impl.distributed.job import FILE_ROWS, FOLDER_ROWS, Job
        from hf_bert_impl.distributed.run import run_job as run

        job = Job(
            getattr(batch_tasks, task),
            {"model": model, **options},
            inputs,
            output.absolute(),
            columns,
            given.id_column,
            given.part_size or (FILE_ROWS if output.suffix else FOLDER_ROWS),
            precision,
        )
        try:
            report = run(
                job,
                resume=given.resume,
                overwrite=given.overwrite,
                progress=not given.quiet,
                ray=(given.workers, given.address) if given.engine == "ray" else None,
            )
        except KeyboardInterrupt:
            if any(job.folder.glob("part-*")) and not given.quiet:
                typer.echo("interrupted; run the same command again to resume", err=True)
            raise
    if given.as_json:
        typer.echo(to_json(report | {"engine": given.engine, "workers": given.workers}))
    elif report["finished"] and not given.quiet:
        typer.echo(f"{output} is finished")
    elif not given.quiet:
        tokens = report["tokens_per_second"]
        parts = f"{report['parts']} part" + "s" * (report["parts"] != 1)
        speed = f"{report['texts_per_second']:,.0f} texts"
        speed += "" if tokens is None else f" and {tokens:,.0f} tokens"
        typer.echo(
            f"{output}: {report['rows']:,} rows in {parts}, "
            f"{report['rejected']:,} rejected; {speed} per second; {report['precision']}"
        )


def check_output(given: JobOptions, endings: tuple[str, ...]) -> None:
    """Checks the output's name before anything is read.

    Raises:
        InputError: It has another ending, contains the input, or is in the folder of texts; or the
            engine cannot write it.
    """
    source, output = given.file, given.output
    place, read = (Path(os.path.realpath(path)) for path in (output, os.path.expanduser(source)))
    if source != "-" and place in (read, *read.parents) and not output.is_file():
        raise InputError(f"The input {source} is inside --output {output}. Choose another output.")
    if source != "-" and read.is_dir() and read in place.parents:  # a resumed run would read it
        raise InputError(
            f"--output {output} is in {source}, whose files are all read as texts. Choose a place "
            "outside it."
        )
    if output.suffix and output.suffix not in endings:
        raise InputError(
            f"--output is {output}. End the name in {' or '.join(endings)}, or give a folder "
            "without an ending."
        )
    if given.engine == "local" and (given.workers != 1 or given.address is not None):
        raise InputError("--workers and --address need Ray. Add --engine ray.")
    if given.engine == "ray":
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
        # The job is there as well if its run was killed after it had written the output.
        is_own = (others[0] / "manifest.json").exists()
        overwrite = given.overwrite or given.resume or is_own
        check_output_file("--output", output, overwrite, sources=[source], others=others)
    else:
        check_rights(output)
