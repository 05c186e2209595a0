"""Small models by task."""

from collections.abc import Callable

import pytest

HEADS = {
    "embed": ("BertModel",),
    "rerank": ("BertForSequenceClassification", 1),
    "classify": ("BertForSequenceClassification", 3),
    "answer": ("BertForQuestionAnswering",),
}


@pytest.fixture(scope="session")
def served(models: Callable[..., str]) -> Callable[[str], str]:
    """The folder of a task's model."""
    return lambda task: models(*HEADS[task])
