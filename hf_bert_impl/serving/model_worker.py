"""Computes requests with one model: concurrent calls are joined into batches of tokens."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from hf_bert_impl.checkpoints import open_checkpoint
from hf_bert_impl.errors import InputError
from hf_bert_impl.freed_memory import keep_freed_memory
from hf_bert_impl.head_names import check_name
from hf_bert_impl.inference.sentence_folder import SENTENCE_CONFIG, read_modules
from hf_bert_impl.serving.tasks import TASKS
from hf_bert_impl.tokenizer_files import read_fields


@dataclasses.dataclass(frozen=True)
class ModelInfo:
    """Public facts about a served model."""

    name: str
    task: str
    """One of `PATHS`."""
    labels: tuple[str, ...] = ()
    """Labels of a classifier."""
    max_length: int | None = None
    """Tokens at which a text or a pair is cut; None for contexts, which are never cut."""
    dtype: str = "float32"
    """The precision of the weights."""


class Computed(NamedTuple):
    """The results of a request."""

    values: Any
    """(N, D) vectors, (N,) scores, (N, L) probabilities, or a list of answers per question."""
    tokens: int


class Refused(NamedTuple):
    """The reason why a request cannot be computed; its sender can fix it."""

    reason: str


class Unavailable(Exception):
    """No worker answers."""


class Backend(Protocol):
    """Computes requests: a `ModelWorker`, or several of them behind one interface."""

    info: ModelInfo

    async def compute(self, items: list[Any], options: dict[str, Any]) -> Computed | Refused:
        """As `ModelWorker.compute`; raises `Unavailable` while no worker answers."""

    async def check(self) -> Any:
        """Raises `Unavailable` if no worker answers."""


def task_of(model: str) -> str:
    """Reads the task of a model from its config.

    Args:
        model: A folder or a hub id.

    Raises:
        ValueError, OSError: The model does not exist or cannot be served.
    """
    check_name(model)
    saved_by = read_fields(model, SENTENCE_CONFIG).get("model_type")
    if len(read_modules(model) or ()) > 1 or saved_by not in (None, "CrossEncoder"):
        # The classes that load them refuse other models of sentence-transformers.
        return "rerank" if saved_by == "CrossEncoder" else "embed"
    checkpoint = open_checkpoint(model, with_tokenizer=True, any_family=True)
    if checkpoint.architecture.endswith("ForQuestionAnswering"):
        return "answer"
    if not checkpoint.architecture.endswith("ForSequenceClassification"):
        return "embed"
    labels = checkpoint.config.get("id2label") or {}
    is_single = int(checkpoint.config.get("num_labels", len(labels) or 2)) == 1
    return "rerank" if is_single else "classify"


class ModelWorker:
    """A model in this process, which computes concurrent requests together.

    Args:
        name: Its name for clients.
        task: One of `PATHS`.
        model: A folder or a hub id.
        dtype: As of `prepare_for_inference`; None for the dtype of the saved weights.
        normalize: Make vectors of length 1.
        threads: Threads of torch, in its own process; None leaves torch's number.
    """

    def __init__(
        self,
        name: str,
        task: str,
        model: str,
        dtype: str | None = None,
        normalize: bool = False,
        threads: int | None = None,
    ) -> None:
        if threads is not None:
            keep_freed_memory()
            torch.set_num_threads(threads)
        self.task = TASKS[task](model, dtype)
        self.task.normalize = normalize
        kind = str(self.task.bert.dtype).removeprefix("torch.")
        self.info = ModelInfo(name, task, self.task.labels, self.task.max_length, kind)

    async def check(self) -> ModelInfo:
        """Public facts about the model; an answer shows that the worker is alive."""
        return self.info

    async def compute(self, items: list[Any], options: dict[str, Any]) -> Computed | Refused:
        """Computes one request.

        Args:
            items: Texts; or pairs of texts: query and document, question and context.
            options: Arguments of the task's `check`.

        Returns:
            The results, in the order of the items.
        """
        try:
            request = await asyncio.to_thread(self.task.check, items, **options)
        except InputError as error:
            return Refused(str(error))
        values = await self.task.compute(request)
        return Computed(values if self.info.task == "answer" else np.array(values), request.tokens)


def scores_in_order(scores: np.ndarray) -> list[int]:
    """Indices of scores, the best first; equal scores stay in their order."""
    return [int(index) for index in np.argsort(-scores, kind="stable")]
