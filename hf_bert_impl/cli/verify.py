"""`hf-bert verify`: compares this implementation with transformers' BERT."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hf_bert_impl import checkpoints
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.options import AsJson, Head, Model, from_dataclass, refuse_unused
from hf_bert_impl.cli.reports import show
from hf_bert_impl.parity.options import VerifyOptions


@from_dataclass(VerifyOptions)
def verify(
    fields: dict[str, Any],
    context: typer.Context,
    model: Model,
    head: Head = None,
    heads: Annotated[
        bool, typer.Option("--heads", help="Also print a grid of layers and attention heads.")
    ] = False,
    batch_invariant: Annotated[
        bool,
        typer.Option(
            "--batch-invariant",
            help="Check instead that outputs do not depend on the batch, with and without "
            "batch_invariant.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare this implementation with transformers' own BERT on the same weights.

    It compares all layers, attention heads and outputs at attended positions, in float32 and
    bfloat16, with eager and sdpa attention, and with all kinds of padding. The exit status is 1 if
    they differ.

    With --batch-invariant, it computes 70 random texts alone and in shuffled batches. The exit
    status is 1 if a bit changes with batch_invariant.

    Example: hf-bert verify google-bert/bert-base-cased --gradients
    """
    if batch_invariant:
        refuse_unused(context, "with --batch-invariant", *fields, "heads")
    report: Any
    shown = {}
    with quiet_libraries():
        checkpoint = checkpoints.open_checkpoint(model, any_family=not batch_invariant)
        if batch_invariant:
            from hf_bert_impl.parity.batch_invariance import verify_batch_invariance

            report = verify_batch_invariance(checkpoint, head)
        else:
            from hf_bert_impl.parity.verification import verify_checkpoint

            report = verify_checkpoint(checkpoint, head, **fields)
            shown = {"heads": heads}
    show(report, as_json, **shown)
    if not report.passed:
        raise typer.Exit(1)
