"""`hf-bert classify`: labels of texts, in parts."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hf_bert_impl.cli.bulk import PANELS, JobOptions, TextOptions, run_in_parts
from hf_bert_impl.cli.options import (
    AsJson,
    OutputFolder,
    Silent,
    TextFile,
    from_dataclass,
    taken,
)


@from_dataclass(
    TextOptions, JobOptions, panels=PANELS, normalize=None, batch_invariant=None, precision=None
)
def classify(
    fields: dict[str, Any],
    file: TextFile,
    model: Annotated[
        str, typer.Option("--model", "-m", help="A sequence classifier: a folder or a hub id.")
    ],
    output: OutputFolder,
    as_json: AsJson = False,
    quiet: Silent = False,
) -> None:
    """Predict the most probable label of each text, with its probability.

    DIR gets part-*.parquet with the columns id, label and score, and a manifest. Rows
    that are invalid or repeat an id go to its rejects.jsonl.

    Example: hf-bert classify reviews.csv --column text --model my-classifier --output labels
    """
    from hf_bert_impl.distributed import Classify

    text = taken(TextOptions, fields)
    run_in_parts(
        Classify,
        file,
        output,
        text.column,
        {"model": model, "dtype": text.dtype, "token_budget": text.batch_tokens},
        JobOptions(**fields),
        as_json=as_json,
        quiet=quiet,
    )
