"""`hf-bert embed`: a file of texts to a matrix of vectors, resumed where it was interrupted."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_bert_impl import checkpoints
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import Dtype, Model, Overwrite, Silent
from hf_bert_impl.cli.output_checks import check_output_file
from hf_bert_impl.cli.text_input import TextInput
from hf_bert_impl.data.vector_file import VectorFile, files_beside

if TYPE_CHECKING:
    from hf_bert_impl.inference import TextEncoder

#: Its vector tells whether the weights are those with which an interrupted run began.
PROBE = "The quick brown fox jumps over the lazy dog."
PROBE_TOLERANCE = 1e-3


def embed(
    model: Model,
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="One text a line, or .jsonl; - reads standard input."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .npy file to write.")],
    dtype: Dtype = None,
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens a batch.", show_default="4096")
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize/--no-normalize", help="Make vectors of length 1.")
    ] = False,
    column: Annotated[
        str | None,
        typer.Option(
            help="The field of JSON lines that holds the text; reads any FILE as JSON lines.",
            show_default="text, for .jsonl",
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object about the result.")
    ] = False,
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
        encoder = checkpoints.load_encoder(model, dtype)
        settings = {
            "model": model,
            "dtype": dtype,
            "normalize": normalize,
            "max_length": encoder.max_length,
        }
        begin = time.perf_counter()
        with VectorFile(output, encoder.dimension, settings) as vectors:
            check_model(vectors, encoder)
            resumed = vectors.skip(texts)
            write_vectors(texts, vectors, encoder, batch_tokens, normalize, quiet)
            vectors.finish()
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


def check_model(vectors: VectorFile, encoder: TextEncoder) -> None:
    """Check that an interrupted run had a model that gives the same vectors.

    Raises:
        InputError: It had another.
    """
    probe = encoder.encode(PROBE, normalize_embeddings=True)
    before = vectors.extra.get("probe")
    if before is not None and abs(probe - before).max() > PROBE_TOLERANCE:
        raise vectors.changed("the model gives other vectors now")
    vectors.extra["probe"] = [round(float(value), 6) for value in probe]


def write_vectors(
    texts: TextInput,
    vectors: VectorFile,
    encoder: TextEncoder,
    batch_tokens: int | None,
    normalize: bool,
    quiet: bool,
) -> None:
    """Encode what is left of the texts, in order."""
    from hf_bert_impl.inference.progress import text_progress

    read: deque[tuple[str, int]] = deque()

    def remembered() -> Iterator[str]:
        for text in texts:
            read.append((text, texts.bytes_read))
            yield text

    batches = encoder.encode_stream(
        remembered(), token_budget=batch_tokens, normalize_embeddings=normalize, batches=True
    )
    try:
        with text_progress(not quiet, texts.size, start=vectors.rows) as advance:
            for batch in batches:
                done = [read.popleft() for _ in range(len(batch))]
                vectors.append([text for text, _ in done], batch.cpu().numpy())
                advance(len(batch), done[-1][1])
    except BaseException as error:
        if vectors.rows:
            vectors.checkpoint()
            if isinstance(error, KeyboardInterrupt) and not quiet:
                note = f"stopped after {vectors.rows} texts; the same command goes on from there"
                typer.echo(note, err=True)
        raise
    finally:
        batches.close()
