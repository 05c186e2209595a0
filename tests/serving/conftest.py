"""Small models by task, and one that computes nothing."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hf_bert_impl.serving.model_worker import Computed, ModelInfo

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


class Slow:
    """Computes nothing, for some time, or fails."""

    info = ModelInfo("small", "embed")

    def __init__(self, seconds: float = 60, error: Exception | None = None) -> None:
        self.seconds, self.error = seconds, error

    async def compute(self, items: list[str], options: dict[str, Any]) -> Computed:
        await asyncio.sleep(self.seconds)
        await self.check()
        return Computed(np.zeros((len(items), 4), np.float32), 3 * len(items))

    async def check(self) -> None:
        if self.error is not None:
            raise self.error
