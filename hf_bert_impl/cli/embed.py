"""`hf-bert embed`: a file of texts to a matrix of vectors, resumed where it was interrupted."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_bert_impl import checkpoints
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import AsJson, BatchInvariant, Dtype, Model, Overwrite, Silent
from hf_bert_impl.cli.output_checks import check_output_file
from hf_bert_impl.data.text_input import TextInput
from hf_bert_impl.data.vector_file import VectorFile, files_beside


def embed(
    model: Model,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="One text a line; or .csv, .tsv (without quotes), .jsonl, .parquet, or a folder "
            "that datasets saved. .gz, .bz2, .xz or .zst may follow. - reads standard input.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .npy file to write.")],
    dtype: Dtype = None,
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens a batch.", show_default="4096")
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize/--no-normalize", help="Make vectors of length 1.")
    ] = False,
    batch_invariant: BatchInvariant = False,
    column: Annotated[
        str | None,
        typer.Option(
            help="The texts: a name, or a number from 0 in a .csv or .tsv without header. Plain "
            "lines are then read as JSON lines.",
            show_default="the only column; text, for .jsonl",
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Silent = False,
) -> None:
    """Write the vectors of texts to a .npy file: float32, one row a text, in input order.

    Works in constant memory. When it is interrupted, the same command goes on from there; OUTPUT
    appears when it is complete.

    Example: hf-bert embed sentence-transformers/all-MiniLM-L6-v2 lines.txt --output vectors.npy
    """
    beside = files_beside(output)
    check_output_file(
        "--output", output, overwrite, endings=[".npy"], sources=[file], beside=beside
    )
    with TextInput(file, column) as texts, quiet_libraries():
        from hf_bert_impl.inference.vector_writing import write_vectors

        encoder = checkpoints.load_encoder(model, dtype, batch_invariant=batch_invariant)
        settings: dict[str, Any] = {
            "model": model,
            "dtype": dtype,
            "normalize": normalize,
            "max_length": encoder.max_length,
        }
        if batch_invariant:  # files of earlier releases go on without it
            settings["batch_invariant"] = True
        begin = time.perf_counter()
        with VectorFile(output, encoder.dimension, settings) as vectors:
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
            "dimension": encoder.dimension,
            "resumed_from": resumed,
            "seconds": round(seconds, 3),
            "texts_per_second": round(done / seconds, 1),
            "precision": encoder.precision,
        }
        typer.echo(json.dumps(report))
    elif not quiet:
        before = f", {resumed} of them from before" if resumed else ""
        typer.echo(
            f"{output}: {vectors.rows} vectors of {encoder.dimension} numbers{before}; "
            f"{done / seconds:,.0f} texts a second; {encoder.precision}"
        )
