"""What a served model computes: requests of many clients, joined into batches of tokens."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hf_bert_impl.checkpoints import open_checkpoint
from hf_bert_impl.distributed.batch_tasks import Answer, Classify, EmbedTexts, ScorePairs
from hf_bert_impl.errors import InputError


@dataclasses.dataclass(frozen=True)
class ModelInfo:
    """What clients may know of a served model."""

    name: str
    task: str
    """One of `PATHS`."""
    labels: tuple[str, ...] = ()
    """Of a classifier."""
    dimension: int | None = None
    """Of vectors."""
    prompts: tuple[str, ...] = ()
    """Names of what can be put before a text."""


class Computed(NamedTuple):
    """The results of a request."""

    values: Any
    """(N, D) vectors, (N,) scores, (N, L) probabilities, or a list with the answers to each."""
    tokens: int


class Refused(NamedTuple):
    """Why a request cannot be computed: its sender can mend it."""

    reason: str


def task_of(model: str) -> str:
    """What a model can be served for, by its config.

    Args:
        model: A folder or a hub id.

    Raises:
        ValueError, OSError: There is no such model, or it has a head that nothing is served by.
    """
    if (Path(model).expanduser() / "modules.json").is_file():  # of sentence-transformers
        return "embed"
    checkpoint = open_checkpoint(model, with_tokenizer=True)
    if checkpoint.architecture == "BertForQuestionAnswering":
        return "answer"
    if checkpoint.architecture != "BertForSequenceClassification":
        return "embed"
    labels = checkpoint.config.get("id2label") or {}
    return (
        "rerank" if int(checkpoint.config.get("num_labels", len(labels) or 2)) == 1 else "classify"
    )


class ModelWorker:
    """A model in one process, which computes requests side by side.

    Args:
        name: What clients call it.
        task: One of `PATHS`.
        model: A folder or a hub id.
        dtype: As of `prepare_for_inference`; None for what the weights are saved in.
        normalize: Make vectors of length 1.
        threads: What it computes with; None leaves torch's number.
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
        self.normalize = normalize
        options: dict[str, Any] = {"dtype": dtype, "threads": threads}
        if task == "embed":
            self.encoder = EmbedTexts(model, **options).encoder
            self.info = ModelInfo(
                name, task, dimension=self.encoder.width, prompts=tuple(self.encoder.prompts)
            )
        elif task == "rerank":
            self.classifier = ScorePairs(model, **options).classifier
            self.info = ModelInfo(name, task)
        elif task == "classify":
            self.classifier = Classify(model, **options).classifier
            self.info = ModelInfo(name, task, labels=tuple(self.classifier.labels))
        else:
            self.answering = Answer(model, **options).answering
            self.info = ModelInfo(name, task)
        self._compute = getattr(self, f"_{task}")

    async def check(self) -> ModelInfo:
        """What clients may know of the model; that it answers tells that it lives."""
        return self.info

    async def compute(self, items: list[Any], options: dict[str, Any]) -> Computed | Refused:
        """Computes one request.

        Args:
            items: Texts; or pairs of texts: query and document, question and context.
            options: `prompt_name` of vectors, `raw_scores` of scores, `top_k` of answers.

        Returns:
            The results, in the order of the items.
        """
        try:
            return Computed(*await self._compute(items, **options))
        except (ValueError, TypeError) as error:
            return Refused(str(error))

    async def _embed(self, texts: list[str], prompt_name: str | None = None) -> tuple[Any, int]:
        return await self.encoder.encode_async(
            texts, prompt_name, normalize_embeddings=self.normalize, return_tokens=True
        )

    async def _rerank(self, pairs: list[Any], raw_scores: bool = False) -> tuple[Any, int]:
        queries, texts = zip(*pairs, strict=True)
        logits, tokens = await self.classifier.logits_async(queries, texts)
        scores = logits if raw_scores else self.classifier.probabilities(logits)
        return scores[:, 0], tokens

    async def _classify(self, items: list[Any]) -> tuple[Any, int]:
        pairs = [item for item in items if not isinstance(item, str)]
        if pairs and len(pairs) < len(items):
            raise InputError(
                "texts and pairs of texts stand beside each other", "one of both", "send two calls"
            )
        columns = zip(*pairs, strict=True) if pairs else (items,)
        logits, tokens = await self.classifier.logits_async(*columns)
        return self.classifier.probabilities(logits), tokens

    async def _answer(self, pairs: list[Any], **options: Any) -> tuple[Any, int]:
        found, tokens = await self.answering.answer_async(pairs, **options)
        return [one if isinstance(one, list) else [one] for one in found], tokens


def scores_in_order(scores: np.ndarray[Any, Any]) -> list[int]:
    """Numbers of scores, the best first; equal ones in their order."""
    return [int(index) for index in np.argsort(-scores, kind="stable")]
