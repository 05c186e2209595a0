"""`hf-bert classify`: labels of texts."""

from __future__ import annotations

import dataclasses

from hf_bert_impl.cli.bulk import JobOptions, TextOptions, run_job


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classify(TextOptions, JobOptions):
    """Predict the most probable label of each text, with its probability.

    The output has the columns id, label and score. Rows that are invalid or repeat an id go to
    rejects.jsonl in the folder, or to OUTPUT.rejects.jsonl. If interrupted, run the same command
    again to resume.

    Example: hf-bert classify my-classifier reviews.csv --column text --output labels.parquet
    """

    def run(self) -> None:
        """Computes the job."""
        options = {"dtype": self.dtype, "token_budget": self.batch_tokens}
        run_job("Classify", self, self.column, options)
