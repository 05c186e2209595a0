"""`hf-bert embed`: texts to vectors, in one file or a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hf_bert_impl.cli.bulk import PANELS, JobOptions, TextOptions, run
from hf_bert_impl.cli.options import (
    AsJson,
    Model,
    Silent,
    TextFile,
    from_dataclass,
    taken,
)
from hf_bert_impl.data.vector_table import PRECISIONS
from hf_bert_impl.errors import InputError, check_choice


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

    --engine ray computes a folder on Ray. Vectors do not depend on the number of workers.

    Example: hf-bert embed sentence-transformers/all-MiniLM-L6-v2 lines.txt --output vectors.npy
    """
    text, where = taken(TextOptions, fields), JobOptions(**fields)
    check_choice("precision", text.precision, PRECISIONS)
    for option, is_given in (
        ("--id-column", where.id_column is not None),
        ("--precision int8", text.precision == "int8"),
    ):
        if is_given and output.suffix == ".npy":
            raise InputError(
                f"{option} needs a .parquet, and --output is {output.name}. Rename it to "
                f"{output.stem}.parquet."
            )
    options = {
        "model": model,
        "dtype": text.dtype,
        "normalize": text.normalize,
        "token_budget": text.batch_tokens,
        # Workers may have different numbers of threads.
        "batch_invariant": text.batch_invariant or not output.suffix,
    }
    run(
        "EmbedTexts",
        file,
        output,
        text.column,
        options,
        where,
        endings=(".npy", ".parquet"),
        precision=text.precision,
        as_json=as_json,
        quiet=quiet,
    )
