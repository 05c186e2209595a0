"""`hf-bert verify`: compares this implementation with transformers' BERT."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import typer

from hf_bert_impl.checkpoints import open_checkpoint
from hf_bert_impl.cli.errors import quiet_libraries
from hf_bert_impl.cli.reports import show
from hf_bert_impl.cli.shared_options import only, refuse_unused
from hf_bert_impl.parity.options import VerifyOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verify(VerifyOptions):
    """Compare this implementation with transformers' own BERT on the same weights.

    It compares all layers, attention heads and outputs at attended positions, in float32 and
    bfloat16, with eager and sdpa attention, and with all kinds of padding. The exit status is 1 if
    they differ.

    With --batch-invariant, it computes 70 random texts alone and in shuffled batches. The exit
    status is 1 if a bit changes with batch_invariant.

    Example: hf-bert verify google-bert/bert-base-cased --gradients
    """

    TAKES_BARE: ClassVar = True

    model: str
    head: str | None = None
    heads: bool = False
    """Also print a grid of layers and attention heads."""
    batch_invariant: bool = False
    """Check instead that outputs do not depend on the batch, with and without batch_invariant."""
    as_json: bool = False

    def run(self) -> None:
        """Compares, and prints the report."""
        options = dataclasses.asdict(only(VerifyOptions, self))
        if self.batch_invariant:
            refuse_unused(self, "with `batch_invariant`", *options, "heads")
        report: Any
        shown = {}
        with quiet_libraries():
            checkpoint = open_checkpoint(
                self.model, bool(self.text), any_family=not self.batch_invariant
            )
            if self.batch_invariant:
                from hf_bert_impl.parity.batch_invariance import verify_batch_invariance

                report = verify_batch_invariance(checkpoint, self.head)
            else:
                from hf_bert_impl.parity.verification import verify_checkpoint

                report = verify_checkpoint(checkpoint, self.head, **options)
                shown = {"heads": self.heads}
        show(report, self.as_json, **shown)
        if not report.passed:
            raise typer.Exit(1)
