"""`hf-bert embed`: a file of texts to a matrix of vectors, resumed where it was interrupted."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_bert_impl import checkpoints
from hf_bert_impl.cli.bulk import PANEL, Where, run_in_parts
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import (
    AsJson,
    BatchInvariant,
    BatchTokens,
    Dtype,
    Model,
    Overwrite,
    Silent,
    from_dataclass,
)
from hf_bert_impl.cli.output_checks import check_output_file
from hf_bert_impl.data.row_ids import RowIds
from hf_bert_impl.data.text_input import TextInput
from hf_bert_impl.data.vector_file import VectorFile, files_beside
from hf_bert_impl.data.vector_table import PRECISIONS
from hf_bert_impl.errors import InputError, check_choice
from hf_bert_impl.extras import require


@from_dataclass(
    Where,
    part_size=Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most rows a file: OUTPUT is then a folder of part-00000.parquet and so on.",
            show_default="one file; 10000 with --engine ray or --shard",
            rich_help_panel=PANEL,
        ),
    ],
)
def embed(
    fields: dict[str, Any],
    model: Model,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="One text a line; or .csv, .tsv (without quotes), .jsonl, .json, .parquet, or a "
            "folder that datasets saved. .gz, .bz2, .xz or .zst may follow. - reads standard "
            "input. Or a folder of such files, for a folder OUTPUT.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="The .npy or .parquet to write; with --engine ray or --shard the folder of the "
            "parts.",
        ),
    ],
    dtype: Dtype = None,
    batch_tokens: BatchTokens = None,
    normalize: Annotated[
        bool, typer.Option("--normalize/--no-normalize", help="Make vectors of length 1.")
    ] = False,
    batch_invariant: BatchInvariant = False,
    column: Annotated[
        str | None,
        typer.Option(
            help="The texts: a name in the first line, or a number from 0 in a .csv or .tsv "
            "without header. Plain lines are then read as JSON lines, or as .tsv.",
            show_default="the only column; text, for .jsonl",
        ),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option(
            help="The ids for a .parquet, likewise: texts or whole numbers, each once.",
            show_default="rows are numbered from 0",
        ),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            help="float32, float16 or, for a .parquet, int8 with a column scale: a vector is its "
            "whole numbers, of which the largest is 127, times its scale. Cosines need no scale."
        ),
    ] = "float32",
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Silent = False,
) -> None:
    """Write the vectors of texts to a .npy or .parquet: one row a text, in input order.

    A .parquet has the columns id and vector. Works in constant memory. When it is interrupted, the
    same command goes on from there; OUTPUT appears when it is complete.

    With --engine ray or --shard, OUTPUT is a folder of part-*.parquet and a manifest. Every part
    appears complete or not at all, each text has the same bits on any number of workers, --resume
    makes what is missing, and rows that cannot be read go to rejects.jsonl.

    Example: hf-bert embed sentence-transformers/all-MiniLM-L6-v2 lines.txt --output vectors.npy
    """
    where = Where(**fields)
    if where.works_in_parts(file, output):
        check_choice("precision", precision, PRECISIONS)
        from hf_bert_impl.distributed import EmbedTexts

        options = {
            "model": model,
            "dtype": dtype,
            "normalize": normalize,
            "token_budget": batch_tokens,
        }
        run_in_parts(
            EmbedTexts,
            file,
            output,
            column,
            options,
            id_column=id_column,
            precision=precision,
            where=where,
            overwrite=overwrite,
            as_json=as_json,
            quiet=quiet,
        )
        return
    beside = files_beside(output)
    check_output_file(
        "--output", output, overwrite, endings=[".npy", ".parquet"], sources=[file], beside=beside
    )
    check_form(output, precision, id_column, where.part_size)
    with (
        contextlib.closing(RowIds()) as ids,
        TextInput(file, column, id_column, ids.add) as texts,
        quiet_libraries(),
    ):
        from hf_bert_impl.inference.vector_writing import write_vectors

        encoder = checkpoints.load_encoder(model, dtype, batch_invariant=batch_invariant)
        settings: dict[str, Any] = {
            "model": model,
            "dtype": dtype,
            "normalize": normalize,
            "max_length": encoder.max_seq_length,
        }
        if batch_invariant:  # files of earlier releases go on without it
            settings["batch_invariant"] = True
        begin = time.perf_counter()
        with VectorFile(
            output,
            encoder.get_embedding_dimension() or 0,
            settings,
            precision=precision,
            ids=None if id_column is None else ids,
            part_size=where.part_size,
        ) as vectors:
            try:
                resumed = write_vectors(
                    texts,
                    vectors,
                    encoder,
                    token_budget=batch_tokens,
                    normalize=normalize,
                    progress=not quiet,
                )
            except KeyboardInterrupt:
                if vectors.rows and not quiet:
                    note = (
                        f"stopped after {vectors.rows} texts; the same command goes on from there"
                    )
                    typer.echo(note, err=True)
                raise
    done, seconds = vectors.rows - resumed, time.perf_counter() - begin
    if as_json:
        report = {
            "output": str(output),
            "rows": vectors.rows,
            "dimension": encoder.get_embedding_dimension(),
            "resumed_from": resumed,
            "seconds": round(seconds, 3),
            "texts_per_second": round(done / seconds, 1),
            "precision": encoder.precision,
            "stored_as": precision,
        }
        typer.echo(json.dumps(report))
    elif not quiet:
        before = f", {resumed} of them from before" if resumed else ""
        typer.echo(
            f"{output}: {vectors.rows} vectors of {encoder.get_embedding_dimension()} numbers"
            f"{before}; "
            f"{done / seconds:,.0f} texts a second; {encoder.precision}"
        )


def check_form(output: Path, precision: str, id_column: str | None, part_size: int | None) -> None:
    """Check what the output's form can hold, before anything is loaded.

    Raises:
        InputError: There is no such precision, or it takes a .parquet and the output is none.
    """
    check_choice("precision", precision, PRECISIONS)
    if output.suffix == ".parquet":
        require("pyarrow", "train", "writing Parquet")
        return
    for option, given in (
        ("--id-column", id_column is not None),
        ("--part-size", part_size is not None),
        ("--precision int8", precision == "int8"),
    ):
        if given:
            raise InputError(
                f"{option} is given and --output is {output.name}",
                "a name that ends in .parquet for it",
                "rename it, or leave the option out",
            )
