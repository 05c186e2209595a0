"""What a served model computes: requests of many clients, joined into batches of tokens."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer

from hf_bert_impl.checkpoints import open_checkpoint
from hf_bert_impl.distributed.batch_tasks import Answer, Classify, EmbedTexts, ScorePairs
from hf_bert_impl.errors import InputError, check_offsets
from hf_bert_impl.inference.text_encoder import TextEncoder


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
    max_length: int | None = None
    """Tokens at which a text or a pair is cut."""
    dtype: str = "float32"
    """What it computes in."""


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
        known: dict[str, Any] = {}
        if task == "embed":
            self.encoder = EmbedTexts(model, **options).encoder
            known = {"dimension": self.encoder.width, "prompts": tuple(self.encoder.prompts)}
            self._tool: Any = self.encoder
        elif task == "rerank":
            self._tool = self.classifier = ScorePairs(model, **options).classifier
        elif task == "classify":
            self._tool = self.classifier = Classify(model, **options).classifier
            known = {"labels": tuple(self.classifier.labels)}
        else:
            self._tool = self.answering = Answer(model, **options).answering
        known["max_length"] = getattr(self._tool, "max_length", None)
        known["dtype"] = str(self._tool.model.dtype).removeprefix("torch.")
        self.info = ModelInfo(name, task, **known)
        self._compute = getattr(self, f"_{task}")

    async def check(self) -> ModelInfo:
        """What clients may know of the model; that it answers tells that it lives."""
        return self.info

    async def compute(self, items: list[Any], options: dict[str, Any]) -> Computed | Refused:
        """Computes one request.

        Args:
            items: Texts; or pairs of texts: query and document, question and context.
            options: Those of the method of this task below.

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
        name = prompt_name or self.encoder.default_prompt_name
        before = self.encoder.prompts[name] if name else ""
        encoder = await self._cutting([before + text for text in texts], **cut)
        return await encoder.encode_async(
            texts,
            prompt_name,
            normalize_embeddings=self.normalize if normalize is None else normalize,
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
        if max_tokens_per_doc is not None and max_tokens_per_doc < self.classifier.max_length:
            texts = await asyncio.to_thread(self._first_tokens, texts, max_tokens_per_doc)
        classifier = await self._cutting(list(zip(queries, texts, strict=True)), **cut)
        logits, tokens = await classifier.logits_async(queries, texts)
        scores = logits if raw_scores else self.classifier.probabilities(logits)
        return scores[:, 0], tokens

    async def _classify(
        self, items: list[Any], function: str | None = None, **cut: Any
    ) -> tuple[Any, int]:
        pairs = [item for item in items if not isinstance(item, str)]
        if pairs and len(pairs) < len(items):
            raise InputError(
                "texts and pairs of texts stand beside each other", "one of both", "send two calls"
            )
        columns = zip(*pairs, strict=True) if pairs else (items,)
        classifier = await self._cutting(items, **cut)
        logits, tokens = await classifier.logits_async(*columns)
        if function is None:
            return self.classifier.probabilities(logits), tokens
        scores = torch.from_numpy(logits).double()
        scores = {"none": scores, "sigmoid": scores.sigmoid(), "softmax": scores.softmax(-1)}[
            function
        ]
        return scores.float().numpy(), tokens

    async def _answer(self, pairs: list[Any], **options: Any) -> tuple[Any, int]:
        found, tokens = await self.answering.answer_async(pairs, **options)
        return [one if isinstance(one, list) else [one] for one in found], tokens

    async def _cutting(
        self, items: list[Any], truncate: bool = True, direction: str | None = None
    ) -> Any:
        """The encoder or classifier that cuts long items as a request asks.

        Raises:
            InputError: An item is longer than the model takes, and is not to be cut.
        """
        if not truncate:
            limit = self._tool.max_length
            for index, length in enumerate(await asyncio.to_thread(self._lengths, items)):
                if length > limit:
                    raise InputError(
                        f"text {index} has {length} tokens",
                        f"at most {limit}",
                        'cut it, or send "truncate": true',
                    )
        return self._tool if direction in (None, self._side) else self._turned

    @property
    def _side(self) -> str:
        return str(self._tool.tokenizer.truncation_side)

    @functools.cached_property
    def _turned(self) -> Any:
        """The same with the same model, which cuts long texts on their other side."""
        turned = self._copy()
        turned.tokenizer.truncation_side = "left" if self._side == "right" else "right"
        if isinstance(turned, TextEncoder):
            turned.max_length = turned.max_length  # its own copy of the tokenizer cuts so too
        return turned

    def _copy(self) -> Any:
        return copy.deepcopy(self._tool, {id(self._tool.model): self._tool.model})

    @functools.cached_property
    def _whole(self) -> Tokenizer:
        """Cuts nothing, and is never changed, so that any thread may use it."""
        tool = self._tool
        inner: Any = tool.tokenizer.backend_tokenizer
        if isinstance(tool, TextEncoder):  # which may lower-case texts
            inner = tool._backend
        whole = Tokenizer.from_str(inner.to_str())
        whole.no_truncation()
        whole.no_padding()
        return whole

    def _lengths(self, items: list[Any]) -> list[int]:
        tokenizer = self._tool.tokenizer
        if not tokenizer.is_fast:  # one that is written in Python
            return list(map(len, tokenizer(items, truncation=False, verbose=False)["input_ids"]))
        return [len(encoding) for encoding in self._whole.encode_batch_fast(items)]

    def _first_tokens(self, texts: Sequence[str], count: int) -> Sequence[str]:
        """Texts, cut after so many tokens."""
        check_offsets(self._tool.tokenizer)
        encoded = self._whole.encode_batch(texts, add_special_tokens=False)
        return [
            text if len(tokens) <= count else text[: tokens.offsets[count - 1][1]]
            for text, tokens in zip(texts, encoded, strict=True)
        ]


def scores_in_order(scores: np.ndarray[Any, Any]) -> list[int]:
    """Numbers of scores, the best first; equal ones in their order."""
    return [int(index) for index in np.argsort(-scores, kind="stable")]
