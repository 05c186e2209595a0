"""Small models by task, and texts of many lengths."""

import functools
from collections.abc import Callable

import pytest

from tests.support.checkpoints import save_checkpoint

HEADS = {
    "embed": ("BertModel", {}),
    "rerank": ("BertForSequenceClassification", {"num_labels": 1}),
    "classify": ("BertForSequenceClassification", {"num_labels": 3}),
    "answer": ("BertForQuestionAnswering", {}),
    "fill-mask": ("BertForMaskedLM", {}),
}
#: Unlike each other in length.
TEXTS = [f"the cat {'sat on the mat ' * (n % 7)}number {n}" for n in range(23)]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Folders of models by task, each made once."""

    @functools.cache
    def folder(task: str) -> str:
        name, sizes = HEADS[task]
        place = tmp_path_factory.mktemp("served") / task
        return str(save_checkpoint(place, name, initializer_range=0.4, **sizes))

    return folder
