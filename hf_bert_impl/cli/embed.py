"""`hf-bert embed`: texts to vectors, in one file or a folder."""

from __future__ import annotations

import dataclasses

from hf_bert_impl.cli.bulk import JobOptions, TextOptions, run_job
from hf_bert_impl.data.vector_table import PRECISIONS
from hf_bert_impl.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embed(TextOptions, JobOptions):
    """Write the vectors of texts to a .npy, a .parquet or a folder of parts.

    A .npy has one row per text, in input order; a .parquet has the columns id and vector. Works in
    constant memory. If interrupted, run the same command again to resume.

    Rows that are invalid or repeat an id go to rejects.jsonl in the folder, or to
    OUTPUT.rejects.jsonl; in a .npy such a row is NaN.

    --engine ray computes a folder on Ray. Vectors do not depend on the number of workers.

    Example: hf-bert embed sentence-transformers/all-MiniLM-L6-v2 lines.txt --output vectors.npy
    """

    normalize: bool = False
    """Scale vectors to length 1."""
    batch_invariant: bool = False
    precision: str = dataclasses.field(default="float32", metadata={"choices": PRECISIONS})
    """float32, float16 or int8. int8 needs a .parquet or a folder: a vector is its integers times
    the column scale."""

    def run(self) -> None:
        """Computes the job."""
        for option, is_given in (
            ("id_column", self.id_column is not None),
            ("precision=int8", self.precision == "int8"),
        ):
            if is_given and self.output.suffix == ".npy":
                raise InputError(
                    f"`{option}` needs a .parquet, and --output is {self.output.name}. Rename it "
                    f"to {self.output.stem}.parquet.",
                    option,
                )
        options = {
            "dtype": self.dtype,
            "normalize": self.normalize,
            "token_budget": self.batch_tokens,
            # Workers may have different numbers of threads.
            "batch_invariant": self.batch_invariant or not self.output.suffix,
        }
        endings = (".npy", ".parquet")
        run_job("EmbedTexts", self, self.column, options, endings, self.precision)
