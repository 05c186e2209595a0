"""What can be chosen of a probe. Nothing large is imported here: the command line shows it."""

from __future__ import annotations

import dataclasses

from hf_bert_impl.data.option_ranges import COUNT, MILLION, Range, check_ranges
from hf_bert_impl.errors import check_choice

#: Kinds of task: what the probe sees of vectors u and v, and the score that counts.
PROTOCOLS = {
    "classification": "accuracy",
    "pair": "accuracy",
    "entailment": "accuracy",
    "relatedness": "pearson",
}
#: The penalties that are tried: scikit-learn's C, and the weight decay of the MLP.
CLASSIFIERS = {
    "logistic": (0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
    "mlp": (1e-5, 1e-4, 1e-3, 1e-2),
}
OPTIMIZERS = ("adam", "rmsprop", "sgd")


@dataclasses.dataclass(frozen=True)
class ProbeOptions:
    """How to probe. The defaults are SentEval's."""

    classifier: str = "logistic"
    """logistic, or mlp with one hidden layer."""
    folds: int = 10
    """Folds of a cross-validation, and those inside each by which the penalty is chosen."""
    hidden: int = 50
    """Units of the MLP's layer."""
    optimizer: str = "adam"
    """Of the MLP: adam, rmsprop or sgd."""
    tenacity: int = 5
    """How often the MLP may fail to become better before it stops."""
    epoch_size: int = 4
    """Epochs of the MLP from one look at the held-out data to the next."""
    batch_size: int = 128
    """Texts that are made vectors at once."""
    seed: int = 1111
    """The seed of the folds and of the MLP."""

    def __post_init__(self) -> None:
        check_choice("classifier", self.classifier, CLASSIFIERS)
        check_choice("optimizer", self.optimizer, OPTIMIZERS)
        positive = {"hidden": COUNT, "tenacity": COUNT, "epoch_size": COUNT}
        check_ranges(self, folds=Range(2, MILLION, whole=True), **positive)
