"""Small models by task, and texts of many lengths."""

from collections.abc import Callable

import pytest

from tests.checkpoints import save_checkpoint

HEADS = {
    "embed": ("BertModel", {}),
    "rerank": ("BertForSequenceClassification", {"num_labels": 1}),
    "classify": ("BertForSequenceClassification", {"num_labels": 3}),
    "answer": ("BertForQuestionAnswering", {}),
}
#: Unlike each other in length.
TEXTS = [f"the cat {'sat on the mat ' * (n % 7)}number {n}" for n in range(23)]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Folders of models by task, each made once."""
    made: dict[str, str] = {}

    def folder(task: str) -> str:
        if task not in made:
            name, sizes = HEADS[task]
            place = tmp_path_factory.mktemp("served") / task
            made[task] = str(save_checkpoint(place, name, initializer_range=0.4, **sizes))
        return made[task]

    return folder
