"""The tasks of a server: each loads its model, checks requests and computes them.

Notation: N items of a request, D dimensions of a vector, L labels.
"""

from __future__ import annotations

import abc
import asyncio
import copy
import functools
from collections.abc import Awaitable, Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers import CrossEncoder
from torch import Tensor, nn

from hf_bert_impl.checkpoints import load_prepared
from hf_bert_impl.data.option_ranges import Range
from hf_bert_impl.data.token_budget import TOKEN_BUDGET
from hf_bert_impl.errors import InputError, check_offsets, one_line
from hf_bert_impl.finite import check_numbers
from hf_bert_impl.in_place import is_bert
from hf_bert_impl.inference.classifier import TextClassifier
from hf_bert_impl.inference.joined_calls import Counted, JoinedCalls
from hf_bert_impl.inference.loading import find_device
from hf_bert_impl.inference.question_answering import QuestionAnsweringPipeline
from hf_bert_impl.text_encoder import TextEncoder, checked_files, count_tokens, optimize_encoder

#: Values of N items, and their number of tokens.
Call = Awaitable[tuple[Any, int]]


class Task(abc.ABC):
    """A served model.

    Args:
        model: The object that computes: an encoder, a classifier or a pipeline.
        bert: Its model of transformers.
        max_length: Tokens at which an item is cut; None if it never is.
    """

    labels: tuple[str, ...] = ()
    normalize = False

    def __init__(self, model: Any, bert: Any, max_length: int | None) -> None:
        self.model, self.bert, self.max_length = model, bert, max_length
        # The computing thread sets the truncation of its own tokenizer. This copy never cuts, so
        # that any thread can use it.
        self._uncut = copy.deepcopy(model.tokenizer)
        self._uncut("", truncation=False)

    @abc.abstractmethod
    async def prepare(self, items: list[Any], **options: Any) -> Call:
        """Checks a request, and returns its computation.

        Raises:
            InputError: The request is wrong.
        """

    async def _cutting(
        self, items: list[Any], truncate: bool = True, direction: str | None = None
    ) -> Any:
        """The model that cuts long items on the side of a request.

        Raises:
            InputError: An item is longer than the model takes, and the request forbids cutting.
        """
        if not truncate:
            limit = self.max_length or 0
            for index, length in enumerate(await asyncio.to_thread(self._lengths, items)):
                if length > limit:
                    raise InputError(
                        f"text {index} has {length} tokens, the limit is {limit}. Send "
                        '"truncate": true.'
                    )
        own = self.model.tokenizer.truncation_side
        return self.model if direction is None or direction.lower() == own else self._turned

    @functools.cached_property
    def _turned(self) -> Any:
        """A copy with the same model of transformers, which cuts long items on the other side."""
        turned = copy.deepcopy(self.model, {id(self.bert): self.bert})
        is_right = turned.tokenizer.truncation_side == "right"
        turned.tokenizer.truncation_side = "left" if is_right else "right"
        return turned

    def _lengths(self, items: list[Any]) -> list[int]:
        encoded = self._uncut(items, truncation=False, verbose=False)
        return list(map(len, encoded["input_ids"]))


class Embed(Task):
    """Vectors (N, D) of texts."""

    def __init__(self, path: str, dtype: str | None) -> None:
        encoder = TextEncoder(path, dtype=dtype, batch_invariant=True)
        super().__init__(encoder, encoder.transformers_model, encoder.max_seq_length)

    async def prepare(
        self,
        items: list[Any],
        prompt_name: str | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        **cut: Any,
    ) -> Call:
        """See `Task.prepare`."""
        if dimensions is not None:
            width = Range(1, self.model.get_embedding_dimension(), whole=True)
            width.check("`dimensions`", dimensions)
        if normalize is None:
            normalize = self.normalize or dimensions is not None
        try:
            before = self.model._resolve_prompt(None, prompt_name) or ""
        except ValueError as error:
            raise InputError(one_line(error)) from error
        chosen = await self._cutting([before + text for text in items], **cut)
        result: Call = chosen.encode_async(
            items,
            prompt_name,
            normalize_embeddings=normalize,
            truncate_dim=dimensions,
            return_tokens=True,
        )
        return result

    def _lengths(self, items: list[Any]) -> list[int]:
        is_lower = self.model[0].do_lower_case
        return super()._lengths([text.lower() for text in items] if is_lower else items)


class Reranker(CrossEncoder):
    """An optimized `CrossEncoder` that joins the pairs of concurrent calls into batches.

    Args:
        path: A folder or a hub id.
        dtype: As of `optimize`; None for the saved dtype.

    Raises:
        InputError: It gives more than one score.
    """

    def __init__(self, path: str, dtype: str | None) -> None:
        with checked_files(path, self.model_type, {}):
            super().__init__(path, device=str(find_device(None)))
        if self.num_labels != 1:
            raise InputError(
                f"{path} has {self.num_labels} labels; a reranker has one. Serve it as `classify`."
            )
        bert: Any = self.model
        optimize_encoder(self, path, dtype, batch_invariant=is_bert(bert))
        self._joined = JoinedCalls(self._counted, self._scores, TOKEN_BUDGET)

    async def predict_async(self, pairs: Sequence[Any], is_raw: bool) -> tuple[np.ndarray, int]:
        """The scores (N,) of `predict`, or without its activation; and the number of tokens."""
        scores, tokens = await self._joined.run(pairs, is_raw, torch.stack)
        return scores.float().cpu().numpy(), tokens

    def _counted(self, pairs: list[Any]) -> list[Counted]:
        return count_tokens(self, pairs, self._resolve_prompt(None, None))

    def _scores(self, batch: list[Counted], is_raw: bool) -> Tensor:
        scores: Tensor = self.predict(
            [counted.item for counted in batch],
            batch_size=len(batch),
            show_progress_bar=False,
            activation_fn=nn.Identity() if is_raw else None,
            convert_to_tensor=True,
        )
        check_numbers(scores, self.model)
        return scores


class Rerank(Task):
    """Scores (N,) of pairs of a query and a text, by sentence-transformers' `CrossEncoder`."""

    def __init__(self, path: str, dtype: str | None) -> None:
        ranker = Reranker(path, dtype)
        super().__init__(ranker, ranker.model, ranker.max_seq_length)

    async def prepare(
        self,
        items: list[Any],
        raw_scores: bool = False,
        max_tokens_per_doc: int | None = None,
        **cut: Any,
    ) -> Call:
        """See `Task.prepare`."""
        if max_tokens_per_doc is not None:
            queries, whole = zip(*items, strict=True)
            texts = await asyncio.to_thread(self._first_tokens, whole, max_tokens_per_doc)
            items = list(zip(queries, texts, strict=True))
        ranker = await self._cutting(items, **cut)
        result: Call = ranker.predict_async(items, raw_scores)
        return result

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


class Classify(Task):
    """Probabilities (N, L) of texts, or of pairs of texts."""

    def __init__(self, path: str, dtype: str | None) -> None:
        loaded = load_prepared(path, "sequence-classification", dtype, batch_invariant=True)
        classifier = TextClassifier(*loaded)
        super().__init__(classifier, classifier.model, classifier.max_length)
        self.labels = tuple(classifier.labels)

    async def prepare(self, items: list[Any], function: str | None = None, **cut: Any) -> Call:
        """See `Task.prepare`."""
        pairs = [item for item in items if not isinstance(item, str)]
        if pairs and len(pairs) < len(items):
            raise InputError("the request mixes texts and pairs of texts. Send two requests.")
        classifier = await self._cutting(items, **cut)
        return self._probabilities(
            classifier, zip(*pairs, strict=True) if pairs else (items,), function
        )

    async def _probabilities(self, classifier: Any, columns: Any, function: str | None) -> Any:
        logits, tokens = await classifier.logits_async(*columns)
        return classifier.probabilities(logits, function), tokens


class Answer(Task):
    """A list of answers per pair of a question and a context."""

    def __init__(self, path: str, dtype: str | None) -> None:
        pipeline = QuestionAnsweringPipeline.from_pretrained(path, dtype, batch_invariant=True)
        super().__init__(pipeline, pipeline.model, None)

    async def prepare(self, items: list[Any], **options: Any) -> Call:
        """See `Task.prepare`."""
        self.model.check(items, **options)
        return self._answers(items, options)

    async def _answers(self, items: list[Any], options: dict[str, Any]) -> Any:
        answers, tokens = await self.model.answer_async(items, **options)
        return [one if isinstance(one, list) else [one] for one in answers], tokens


#: By name of the task.
TASKS: dict[str, Any] = {
    "embed": Embed,
    "rerank": Rerank,
    "classify": Classify,
    "answer": Answer,
}
