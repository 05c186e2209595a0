"""`hf-bert classify`: labels of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hf_bert_impl.cli.bulk import PANELS, JobOptions, TextOptions, run
from hf_bert_impl.cli.options import AsJson, Model, Silent, TextFile, from_dataclass, taken


@from_dataclass(
    TextOptions, JobOptions, panels=PANELS, normalize=None, batch_invariant=None, precision=None
)
def classify(
    fields: dict[str, Any],
    model: Model,
    file: TextFile,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="A .parquet to write, or a folder (a name without an ending)."
        ),
    ],
    as_json: AsJson = False,
    quiet: Silent = False,
) -> None:
    """Predict the most probable label of each text, with its probability.

    The output has the columns id, label and score. Rows that are invalid or repeat an id go to
    rejects.jsonl in the folder, or to OUTPUT.rejects.jsonl. If interrupted, run the same command
    again to resume.

    Example: hf-bert classify my-classifier reviews.csv --column text --output labels.parquet
    """
    text = taken(TextOptions, fields)
    run(
        "Classify",
        file,
        output,
        text.column,
        {"model": model, "dtype": text.dtype, "token_budget": text.batch_tokens},
        JobOptions(**fields),
        as_json=as_json,
        quiet=quiet,
    )
