"""What the pruning of attention heads can be asked for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hf_bert_impl.data.option_ranges import check_ranges
from hf_bert_impl.errors import InputError


@dataclasses.dataclass(frozen=True)
class PruningOptions:
    """How many heads are removed, and on what data they are measured."""

    test: str | None = dataclasses.field(default=None, metadata={"metavar": "FILE"})
    """Data that the model is scored on, before and after; None for --data."""
    share: float | None = None
    """What share of the heads to remove, such as 0.25."""
    count: int | None = None
    """Or how many of them; without either, none is removed."""
    output: Path | None = dataclasses.field(default=None, metadata={"flags": ("--output", "-o")})
    """The folder to write the pruned model to, in its class and dtype."""
    max_length: int | None = None
    """Tokens at which a sequence is cut; None for what the model takes."""
    limit: int | None = dataclasses.field(default=None, metadata={"min": 1})
    """Measure the importance on only so many sequences of --data."""
    overwrite: bool = False
    """Replace OUTPUT if it exists."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.share is not None and self.count is not None:
            raise InputError("`share` and `count` were both given", "one of them", "leave one out")
        if self.share is not None and not 0 < self.share < 1:
            raise InputError(
                f"`share` is {self.share:g}", "more than 0 and less than 1", "choose such a one"
            )
        if self.output is not None and self.share is None and self.count is None:
            raise InputError(
                f"`output` is {self.output}, and there is nothing to remove",
                "`share` or `count` with it",
                "give one of them",
            )
