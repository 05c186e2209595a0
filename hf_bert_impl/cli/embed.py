"""`hf-bert embed`: texts to vectors, in one file or in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hf_bert_impl.cli.bulk import PANELS, JobOptions, TextOptions, run_in_parts
from hf_bert_impl.cli.options import (
    AsJson,
    Model,
    Silent,
    TextFile,
    from_dataclass,
    taken,
)
from hf_bert_impl.cli.output_checks import check_output_file
from hf_bert_impl.data.vector_table import PRECISIONS
from hf_bert_impl.errors import InputError, check_choice
from hf_bert_impl.extras import require

#: Endings of an output file; any other name is a folder of parts.
ENDINGS = (".npy", ".parquet")


@from_dataclass(TextOptions, JobOptions, panels=PANELS)
def embed(
    fields: dict[str, Any],
    model: Model,
    file: TextFile,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="A .npy or .parquet to write, or a folder (a name without an ending).",
        ),
    ],
    as_json: AsJson = False,
    quiet: Silent = False,
) -> None:
    """Write the vectors of texts to a .npy, a .parquet or a folder of parts.

    A .npy has one row per text, in input order; a .parquet has the columns id and vector. Works in
    constant memory. If interrupted, run the same command again to resume.

    Rows that are invalid or repeat an id go to rejects.jsonl in the folder, or to
    OUTPUT.rejects.jsonl; in a .npy such a row is NaN.

    --engine ray and --shard split the work. Vectors do not depend on the number of workers.

    Example: hf-bert embed sentence-transformers/all-MiniLM-L6-v2 lines.txt --output vectors.npy
    """
    text, where = taken(TextOptions, fields), JobOptions(**fields)
    is_file = output.suffix in ENDINGS
    check_choice("precision", text.precision, PRECISIONS)
    if is_file:
        check_form(output, text.precision, where.id_column, where.shard)
        parts, rejects = (
            output.with_name(f"{output.name}{ending}") for ending in (".parts", ".rejects.jsonl")
        )
        check_output_file(
            "--output", output, where.overwrite, sources=[file], others=[parts, rejects]
        )
    elif output.suffix and not output.is_dir():
        raise InputError(
            f"--output is {output}. End the name in {' or '.join(ENDINGS)}, or give a "
            "folder without an ending."
        )
    from hf_bert_impl.distributed import EmbedTexts

    options = {
        "model": model,
        "dtype": text.dtype,
        "normalize": text.normalize,
        "token_budget": text.batch_tokens,
        # Workers may have different numbers of threads.
        "batch_invariant": text.batch_invariant or not is_file or where.engine != "local",
    }
    run_in_parts(
        EmbedTexts,
        file,
        output,
        text.column,
        options,
        where,
        precision=text.precision,
        as_json=as_json,
        quiet=quiet,
        is_file=is_file,
    )


def check_form(output: Path, precision: str, id_column: str | None, shard: str | None) -> None:
    """Checks that a file can hold what the options ask for.

    Raises:
        InputError: An option needs a .parquet or a folder, or a library for it is missing.
    """
    if shard is not None:
        raise InputError(
            f"--shard needs a folder, and --output is {output.name}. Remove the ending."
        )
    if output.suffix == ".parquet":
        require("pyarrow", "train", "writing Parquet")
        return
    for option, is_given in (
        ("--id-column", id_column is not None),
        ("--precision int8", precision == "int8"),
    ):
        if is_given:
            raise InputError(
                f"{option} needs a .parquet, and --output is {output.name}. Rename it to "
                f"{output.stem}.parquet."
            )
