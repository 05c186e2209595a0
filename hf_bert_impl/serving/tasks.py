"""The tasks of a server: each loads its model, checks requests and computes them.

Notation: N items of a request, D dimensions of a vector, L labels.
"""

from __future__ import annotations

import abc
import copy
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from sentence_transformers import CrossEncoder
from torch import nn

from hf_bert_impl.data.option_ranges import Range
from hf_bert_impl.errors import InputError, check_offsets, one_line
from hf_bert_impl.finite import check_numbers
from hf_bert_impl.head_names import BERT_TYPES
from hf_bert_impl.inference.classifier import TextClassifier
from hf_bert_impl.inference.joined_calls import JoinedCalls
from hf_bert_impl.inference.loading import find_device, load_prepared
from hf_bert_impl.inference.question_answering import QuestionAnsweringPipeline
from hf_bert_impl.text_encoder import TextEncoder, checked_files, optimize_encoder


class Request(NamedTuple):
    """A checked request."""

    items: list[Any]
    options: dict[str, Any]
    """Arguments of the task's `values`."""
    is_turned: bool
    """Whether long items are cut on the side that is not the tokenizer's own."""
    tokens: int


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
        self._joined = JoinedCalls(self._compute, _characters)

    def check(
        self,
        items: list[Any],
        truncate: bool = True,
        truncation_direction: str | None = None,
        **options: Any,
    ) -> Request:
        """Checks a request, in any thread.

        Raises:
            InputError: The request is wrong, or an item is longer than the model takes and the
                request forbids cutting.
        """
        items, options = self.prepare(items, **options)
        lengths, limit = self._lengths(items, **options), self.max_length or 2**30
        for index, length in enumerate(() if truncate else lengths):
            if length > limit:
                raise InputError(
                    f"text {index} has {length} tokens, the limit is {limit}. Send "
                    '"truncate": true.'
                )
        side = (truncation_direction or self._uncut.truncation_side).lower()
        tokens = sum(min(length, limit) for length in lengths)
        return Request(items, options, side != self._uncut.truncation_side, tokens)

    async def compute(self, request: Request) -> list[Any]:
        """The values of each item."""
        return await self._joined.run(request.items, (request.options, request.is_turned))

    @abc.abstractmethod
    def prepare(
        self, items: list[Any], *arguments: Any, **options: Any
    ) -> tuple[list[Any], dict[str, Any]]:
        """Checks the options of a request; gives the items and the arguments of `values`."""

    @abc.abstractmethod
    def values(self, model: Any, items: list[Any], **options: Any) -> Any:
        """The values of each item, by the model or by `_turned`."""

    def _compute(self, items: list[Any], kind: tuple[dict[str, Any], bool]) -> Any:
        options, is_turned = kind
        return self.values(self._turned if is_turned else self.model, items, **options)

    @functools.cached_property
    def _turned(self) -> Any:
        """A copy with the same model of transformers, which cuts long items on the other side."""
        turned = copy.deepcopy(self.model, {id(self.bert): self.bert})
        is_right = turned.tokenizer.truncation_side == "right"
        turned.tokenizer.truncation_side = "left" if is_right else "right"
        return turned

    def _lengths(self, items: list[Any], **options: Any) -> list[int]:
        encoded = self._uncut(items, truncation=False, verbose=False)
        return list(map(len, encoded["input_ids"]))


def _characters(item: str | Sequence[str]) -> int:
    return len(item) if isinstance(item, str) else sum(map(len, item))


class Embed(Task):
    """Vectors (N, D) of texts."""

    def __init__(self, path: str, dtype: str | None) -> None:
        encoder = TextEncoder(path, dtype=dtype, batch_invariant=True)
        super().__init__(encoder, encoder.transformers_model, encoder.max_seq_length)

    def prepare(
        self,
        items: list[Any],
        prompt_name: str | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
    ) -> tuple[list[Any], dict[str, Any]]:
        if dimensions is not None:
            width = Range(1, self.model.get_embedding_dimension(), whole=True)
            width.check("`dimensions`", dimensions)
        if normalize is None:
            normalize = self.normalize or dimensions is not None
        try:
            prompt = self.model._resolve_prompt(None, prompt_name)
        except ValueError as error:
            raise InputError(one_line(error)) from error
        chosen = {"normalize_embeddings": normalize, "truncate_dim": dimensions}
        return items, {"prompt": prompt, **chosen}

    def values(self, model: Any, items: list[Any], **options: Any) -> Any:
        return model.encode(items, show_progress_bar=False, **options)

    def _lengths(self, items: list[Any], prompt: str | None = None, **options: Any) -> list[int]:
        texts = [(prompt or "") + text for text in items]
        is_lower = self.model[0].do_lower_case
        return super()._lengths([text.lower() for text in texts] if is_lower else texts)


class Rerank(Task):
    """Scores (N,) of pairs of a query and a text, by sentence-transformers' `CrossEncoder`."""

    def __init__(self, path: str, dtype: str | None) -> None:
        with checked_files(path, CrossEncoder.model_type, {}):
            ranker = CrossEncoder(path, device=str(find_device(None)), trust_remote_code=False)
        if ranker.num_labels != 1:
            raise InputError(
                f"{path} has {ranker.num_labels} labels; a reranker has one. Serve it as "
                "`classify`."
            )
        is_bert = ranker.model.config.model_type in BERT_TYPES
        optimize_encoder(ranker, path, dtype, batch_invariant=is_bert)
        super().__init__(ranker, ranker.model, ranker.max_seq_length)

    def prepare(
        self, items: list[Any], raw_scores: bool = False, max_tokens_per_doc: int | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        if max_tokens_per_doc is not None:
            items = [(query, self._first_tokens(text, max_tokens_per_doc)) for query, text in items]
        return items, {"raw_scores": raw_scores}

    def values(self, model: Any, items: list[Any], **options: Any) -> Any:
        function = nn.Identity() if options["raw_scores"] else None
        scores = model.predict(items, show_progress_bar=False, activation_fn=function)
        check_numbers(scores, self.bert)
        return scores

    def _first_tokens(self, text: str, count: int) -> str:
        """A text cut after a number of tokens."""
        check_offsets(self._uncut)
        options = {"truncation": False, "verbose": False, "add_special_tokens": False}
        places = self._uncut(text, return_offsets_mapping=True, **options)["offset_mapping"]
        return text if len(places) <= count else text[: places[count - 1][1]]


class Classify(Task):
    """Probabilities (N, L) of texts, or of pairs of texts."""

    def __init__(self, path: str, dtype: str | None) -> None:
        loaded = load_prepared(path, "sequence-classification", dtype, batch_invariant=True)
        classifier = TextClassifier(*loaded)
        super().__init__(classifier, classifier.model, classifier.max_length)
        self.labels = tuple(classifier.labels)

    def prepare(
        self, items: list[Any], function: str | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        are_pairs = {not isinstance(item, str) for item in items}
        if len(are_pairs) > 1:
            raise InputError("the request mixes texts and pairs of texts. Send two requests.")
        return items, {"function": function, "are_pairs": are_pairs == {True}}

    def values(self, model: Any, items: list[Any], **options: Any) -> Any:
        columns = zip(*items, strict=True) if options["are_pairs"] else (items,)
        return model.probabilities(model.logits(*columns), options["function"])


class Answer(Task):
    """A list of answers per pair of a question and a context."""

    def __init__(self, path: str, dtype: str | None) -> None:
        pipeline = QuestionAnsweringPipeline.from_pretrained(path, dtype, batch_invariant=True)
        super().__init__(pipeline, pipeline.model, None)

    def prepare(self, items: list[Any], **options: Any) -> tuple[list[Any], dict[str, Any]]:
        self.model.check(items, self._uncut, **options)
        return items, options

    def values(self, model: Any, items: list[Any], **options: Any) -> Any:
        asked = ({"question": question, "context": context} for question, context in items)
        return [one if isinstance(one, list) else [one] for one in model(asked, **options)]


#: By name of the task.
TASKS: dict[str, Any] = {
    "embed": Embed,
    "rerank": Rerank,
    "classify": Classify,
    "answer": Answer,
}
