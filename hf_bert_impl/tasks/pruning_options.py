"""Options for pruning attention heads."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hf_bert_impl.data.option_ranges import check_ranges
from hf_bert_impl.errors import InputError


@dataclasses.dataclass(frozen=True)
class PruningOptions:
    """How many heads to remove, and the data to measure them on."""

    test: str | None = dataclasses.field(default=None, metadata={"metavar": "FILE"})
    """Data to score the model on, before and after; None for --data."""
    share: float | None = None
    """The share of the heads to remove, such as 0.25."""
    count: int | None = None
    """The number of heads to remove; without `share` and `count`, none is removed."""
    output: Path | None = dataclasses.field(default=None, metadata={"flags": ("--output", "-o")})
    """The folder to write the pruned model to, in its class and dtype."""
    max_length: int | None = None
    """Tokens at which a sequence is cut; None for the model's maximum."""
    limit: int | None = dataclasses.field(default=None, metadata={"min": 1})
    """Maximum number of sequences of --data that measure the importance."""
    overwrite: bool = False
    """Replace OUTPUT if it exists."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.share is not None and self.count is not None:
            raise InputError("`share` and `count` were both given. Leave one out.")
        if self.share is not None and not 0 < self.share < 1:
            raise InputError(
                f"`share` is {self.share:g}. Use more than 0 and less than 1, e.g. 0.25."
            )
        if self.output is not None and self.share is None and self.count is None:
            raise InputError(
                f"`output` is {self.output}, but no head is removed. Give `share` or `count`."
            )
