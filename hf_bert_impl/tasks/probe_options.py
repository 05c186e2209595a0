"""Options of a probe, with light imports for the command line."""

from __future__ import annotations

import dataclasses

from hf_bert_impl.data.option_ranges import MILLION, Range, check_ranges

#: The main score of each kind of task.
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
    """Folds of the cross-validation, and of the choice of the penalty within each fold."""
    batch_size: int = 128
    """Texts per call of the encoder."""
    seed: int = 1111
    """The seed of the folds."""

    def __post_init__(self) -> None:
        check_ranges(self, folds=Range(2, MILLION, whole=True))
