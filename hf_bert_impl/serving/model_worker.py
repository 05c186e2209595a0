"""Computes requests with one model: concurrent calls are joined into batches of tokens."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from hf_bert_impl.checkpoints import open_checkpoint
from hf_bert_impl.data.option_ranges import Range
from hf_bert_impl.distributed.batch_tasks import Answer, Classify, EmbedTexts, ScorePairs
from hf_bert_impl.errors import InputError, check_offsets
from hf_bert_impl.inference.sentence_folder import read_modules
from hf_bert_impl.text_encoder import TextEncoder

#: The class that loads the model of each task, and its attribute that computes.
PREDICTORS: dict[str, tuple[Any, str]] = {
    "embed": (EmbedTexts, "encoder"),
    "rerank": (ScorePairs, "classifier"),
    "classify": (Classify, "classifier"),
    "answer": (Answer, "answering"),
}


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
    # sentence-transformers lists one module for a cross-encoder, and more for an encoder.
    if len(read_modules(model) or ()) > 1:
        return "embed"
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
        threads: Threads of torch; None leaves torch's number.
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
        load, attribute = PREDICTORS[task]
        is_encoder, self.normalize = task == "embed", normalize
        #: The encoder, classifier or question-answering pipeline.
        self.predictor: Any = getattr(load(model, dtype=dtype, threads=threads), attribute)
        # The predictor's thread sets the truncation of its own tokenizer. This copy never cuts, so
        # that any thread can use it.
        self._uncut = copy.deepcopy(self.predictor.tokenizer)
        self._uncut("", truncation=False)
        self._compute = getattr(self, f"_{task}")
        self._bert = self.predictor.transformers_model if is_encoder else self.predictor.model
        length = "max_seq_length" if is_encoder else "max_length"
        self.info = ModelInfo(
            name,
            task,
            labels=tuple(self.predictor.labels) if task == "classify" else (),
            max_length=getattr(self.predictor, length, None),
            dtype=str(self._bert.dtype).removeprefix("torch."),
        )

    async def check(self) -> ModelInfo:
        """Public facts about the model; an answer shows that the worker is alive."""
        return self.info

    async def compute(self, items: list[Any], options: dict[str, Any]) -> Computed | Refused:
        """Computes one request.

        Args:
            items: Texts; or pairs of texts: query and document, question and context.
            options: Arguments of the method of this task below.

        Returns:
            The results, in the order of the items.
        """
        try:
            return Computed(*await self._compute(items, **options))
        except (ValueError, TypeError) as error:
            return Refused(str(error))

    async def _embed(
        self,
        texts: list[str],
        prompt_name: str | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        **cut: Any,
    ) -> tuple[Any, int]:
        encoder = self.predictor
        if dimensions is not None:
            width = Range(1, encoder.get_embedding_dimension(), whole=True)
            width.check("`dimensions`", dimensions)
        if normalize is None:
            normalize = self.normalize or dimensions is not None
        before = encoder._resolve_prompt(None, prompt_name) or ""
        chosen = await self._cutting([before + text for text in texts], **cut)
        return await chosen.encode_async(
            texts,
            prompt_name,
            normalize_embeddings=normalize,
            truncate_dim=dimensions,
            return_tokens=True,
        )

    async def _rerank(
        self,
        pairs: list[Any],
        raw_scores: bool = False,
        max_tokens_per_doc: int | None = None,
        **cut: Any,
    ) -> tuple[Any, int]:
        queries: Sequence[str]
        texts: Sequence[str]
        queries, texts = zip(*pairs, strict=True)
        if max_tokens_per_doc is not None:
            texts = await asyncio.to_thread(self._first_tokens, texts, max_tokens_per_doc)
        classifier = await self._cutting(list(zip(queries, texts, strict=True)), **cut)
        logits, tokens = await classifier.logits_async(queries, texts)
        scores = logits if raw_scores else classifier.probabilities(logits)
        return scores[:, 0], tokens

    async def _classify(
        self, items: list[Any], function: str | None = None, **cut: Any
    ) -> tuple[Any, int]:
        pairs = [item for item in items if not isinstance(item, str)]
        if pairs and len(pairs) < len(items):
            raise InputError("the request mixes texts and pairs of texts. Send two requests.")
        columns = zip(*pairs, strict=True) if pairs else (items,)
        classifier = await self._cutting(items, **cut)
        logits, tokens = await classifier.logits_async(*columns)
        return classifier.probabilities(logits, function), tokens

    async def _answer(self, pairs: list[Any], **options: Any) -> tuple[Any, int]:
        answers, tokens = await self.predictor.answer_async(pairs, **options)
        return [one if isinstance(one, list) else [one] for one in answers], tokens

    async def _cutting(
        self, items: list[Any], truncate: bool = True, direction: str | None = None
    ) -> Any:
        """The encoder or classifier that cuts long items on the side of a request.

        Raises:
            InputError: An item is longer than the model takes, and the request forbids cutting.
        """
        if not truncate:
            limit = self.info.max_length or 0
            for index, length in enumerate(await asyncio.to_thread(self._lengths, items)):
                if length > limit:
                    raise InputError(
                        f"text {index} has {length} tokens, the limit is {limit}. Send "
                        '"truncate": true.'
                    )
        own = self.predictor.tokenizer.truncation_side
        return self.predictor if direction is None or direction.lower() == own else self._turned

    @functools.cached_property
    def _turned(self) -> Any:
        """A copy of the predictor with the same model, which cuts long texts on the other side."""
        turned = copy.deepcopy(self.predictor, {id(self._bert): self._bert})
        is_right = turned.tokenizer.truncation_side == "right"
        turned.tokenizer.truncation_side = "left" if is_right else "right"
        return turned

    def _lengths(self, items: list[Any]) -> list[int]:
        if isinstance(self.predictor, TextEncoder) and self.predictor[0].do_lower_case:
            items = [text.lower() for text in items]
        encoded = self._uncut(items, truncation=False, verbose=False)
        return list(map(len, encoded["input_ids"]))

    def _first_tokens(self, texts: Sequence[str], count: int) -> list[str]:
        """Texts, each cut after a number of tokens."""
        check_offsets(self._uncut)
        encoded = self._uncut(
            list(texts),
            truncation=False,
            verbose=False,
            add_special_tokens=False,
            return_offsets_mapping=True,
        )
        return [
            text if len(offsets) <= count else text[: offsets[count - 1][1]]
            for text, offsets in zip(texts, encoded["offset_mapping"], strict=True)
        ]


def scores_in_order(scores: np.ndarray) -> list[int]:
    """Indices of scores, the best first; equal scores stay in their order."""
    return [int(index) for index in np.argsort(-scores, kind="stable")]
