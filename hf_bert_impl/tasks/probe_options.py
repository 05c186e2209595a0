"""Options of a probe. Nothing large is imported here: the command line shows them."""

from __future__ import annotations

import dataclasses

from hf_bert_impl.data.option_ranges import MILLION, Range, check_ranges

#: Kinds of task: what the probe sees of vectors u and v, and the score that counts.
PROTOCOLS = {
    "classification": "accuracy",
    "pair": "accuracy",
    "entailment": "accuracy",
    "relatedness": "pearson",
}


@dataclasses.dataclass(frozen=True)
class ProbeOptions:
    """How to probe. The defaults are SentEval's."""

    folds: int = 10
    """Folds of a cross-validation, and those inside each by which the penalty is chosen."""
    batch_size: int = 128
    """Texts that are made vectors at once."""
    seed: int = 1111
    """The seed of the folds."""

    def __post_init__(self) -> None:
        check_ranges(self, folds=Range(2, MILLION, whole=True))
