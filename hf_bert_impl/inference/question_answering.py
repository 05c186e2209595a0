"""Extractive question answering: the pipeline that transformers 5 dropped, without the padding.

Notation: T tokens of a batch side by side, W tokens of a window.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import operator
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.pipelines.base import Pipeline

from hf_bert_impl.checkpoint_files import check_folder
from hf_bert_impl.data.answer_spans import Answers, best_answers
from hf_bert_impl.data.option_ranges import check_length, check_ranges
from hf_bert_impl.data.token_budget import TOKEN_BUDGET, cut_batches
from hf_bert_impl.data.windows import (
    MAX_QUESTION_LEN,
    MAX_SEQ_LEN,
    Window,
    check_lengths,
    cut_windows,
)
from hf_bert_impl.errors import InputError
from hf_bert_impl.families.table import family_of, longest_sequence
from hf_bert_impl.finite import check_numbers
from hf_bert_impl.inference.answer_options import AnswerOptions
from hf_bert_impl.inference.batching import packed_inputs
from hf_bert_impl.inference.joined_calls import JoinedCalls
from hf_bert_impl.inference.loading import (
    budget_for,
    class_to_load,
    load_checked,
    load_tokenizer,
    loading_options,
    prepare_model,
)
from hf_bert_impl.inference.question_answering_inputs import Pair, parse_inputs
from hf_bert_impl.model.modeling_bert import BertPreTrainedModel

#: Questions whose windows are sorted and computed together.
QUESTIONS_AT_ONCE = 1024

#: Start and end logits of a window, (W,) each.
Logits = tuple[np.ndarray, np.ndarray]
#: The windows of a question, and the logits of each.
Scored = tuple[list[Window], list[Logits]]
_PREPROCESS = ("max_seq_len", "doc_stride", "max_question_len")
_POSTPROCESS = ("top_k", "max_answer_len", "align_to_words")
_NULL = ("handle_impossible_answer", "null_score_diff_threshold")


@dataclasses.dataclass(frozen=True)
class _Question:
    """The windows of a question."""

    windows: list[Window]

    def __len__(self) -> int:
        return sum(map(len, self.windows))


class QuestionAnsweringPipeline(Pipeline):
    """Finds the answer to a question in a text, with the arguments and outputs of transformers 4.

    The windows of all questions of a call are sorted by length and go through the model in batches
    that hold no padding. Models of transformers' own classes work too, on padded batches. Of those
    that `optimize` takes, padding is not computed.
    Where a context fits in one window the answers are those of transformers 4. Where it takes
    several, each token counts in the window where it has the most context, and scores of all
    windows are compared, as in run_squad.py (see `hf_bert_impl.data.answer_spans`); transformers 4
    compared probabilities within each window, and gave answers twice.

    `AnswerOptions` and `batch_size` can be given here, for every call, or to a call.

    Args:
        model: A `BertForQuestionAnswering`. It is set to eval mode.
        tokenizer: Its tokenizer.
        prepare: Pack the weights for the CPU's kernels (`prepare_for_inference`). A dtype,
            "bfloat16" or "int8" say, converts first. False leaves the model as it is.
        batch_invariant: Sets `model.config.batch_invariant`: answers and scores have the same bits
            whatever other questions are asked with them, in any order and with any `batch_size`.
            A model of another family computes each window alone then. False leaves what the config
            says.
        batch_size: Most windows at once; by default as many as `TOKEN_BUDGET` tokens allow.
        **kwargs: The fields of `AnswerOptions`, and arguments of transformers' `Pipeline`, such as
            `device`.

    Raises:
        ValueError: A number is out of its range; or `batch_invariant` is asked of another class
            than this package's. A call raises it where the promise cannot be kept, on a GPU say.
        TypeError: The model does not answer questions, or an argument is not known.

    Examples:
        >>> answerer = QuestionAnsweringPipeline.from_pretrained("my-squad-bert")
        >>> answerer(question="Who naps?", context="Anna's cat naps.")
        {'score': ..., 'start': ..., 'end': ..., 'answer': ...}
    """

    default_input_names = "question,context"
    _load_processor = False
    _load_image_processor = False
    _load_video_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        prepare: bool | str | torch.dtype = True,
        batch_invariant: bool = False,
        **kwargs: Any,
    ) -> None:
        if "start_positions" not in inspect.signature(model.forward).parameters:
            raise TypeError(
                f"model is {type(model).__name__}, which does not answer questions; give an "
                "hf_bert_impl.BertForQuestionAnswering"
            )
        is_bert = isinstance(model, BertPreTrainedModel)
        if batch_invariant and not is_bert and family_of(model) is None:
            raise InputError(
                f"A {type(model).__name__} cannot be batch-invariant. Load the model by "
                "hf_bert_impl.BertForQuestionAnswering, or leave `batch_invariant` out."
            )
        super().__init__(model=model.eval(), tokenizer=tokenizer, **kwargs)
        #: How many were computed so far.
        self.tokens = 0
        self._joined = JoinedCalls(self._cut_questions, self._question_logits, TOKEN_BUDGET)
        #: Maximum number of tokens per batch.
        self.token_budget = budget_for(model, TOKEN_BUDGET, batch_invariant)
        if batch_invariant and is_bert:  # before the kernels are chosen
            model.config.batch_invariant = True
        dtype = None if isinstance(prepare, bool) else prepare
        is_known = is_bert or family_of(model) is not None
        if is_known and (dtype or (prepare and self.device.type == "cpu")):
            prepare_model(model, dtype)

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike[str],
        dtype: str | torch.dtype | None = None,
        device: str | torch.device | None = None,
        prepare: bool = True,
        **kwargs: Any,
    ) -> QuestionAnsweringPipeline:
        """Loads a model with its tokenizer.

        Args:
            path: A folder or a hub id of a BERT fine-tuned for question answering, or of another
                family that `optimize` takes.
            dtype: "float32", "bfloat16", "float16", "float16-weights", "int8", "auto", or a dtype
                of torch, as `prepare_for_inference` takes them; None for that of the saved weights.
            device: None takes a GPU where there is one.
            prepare: Pack the weights for the CPU's kernels.
            **kwargs: Arguments of the pipeline, such as `batch_invariant`.

        Returns:
            The pipeline.

        Raises:
            ValueError: An unknown dtype, or weights that are missing (the head's) or not finite.
            OSError: No such folder or model, or its files are missing.
        """
        options = loading_options(dtype, prepare)
        path = os.fspath(path)
        check_folder(path, {})
        kind = class_to_load(path, "BertForQuestionAnswering", {})
        load = functools.partial(kind.from_pretrained, path, **options)
        remedy = "name a model fine-tuned for question answering"
        model = load_checked(load, path, kind.__name__, remedy)
        if device is not None:
            kwargs["device"] = device
        packing = dtype if prepare and dtype else prepare
        return cls(model, load_tokenizer(path, {}), prepare=packing, **kwargs)

    @property
    def null_score_diff_threshold(self) -> float:
        """The threshold that the model's config holds, or 0."""
        return float(getattr(self.model.config, "null_score_diff_threshold", None) or 0)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answers questions.

        Args:
            *args: In place of the keywords: a question and a context; or one dict with `question`
                and `context`, a list of such, or any iterable of such (a generator, a data set).
            question: A question, or a list.
            context: The context of all questions, or a list with one for each.
            **kwargs: See the class.

        Returns:
            For a question a dict with `score` (the probability of start and of end, multiplied),
            `start` and `end` (the first character of the context, and the one after the last) and
            `answer`; where there are several answers a list of dicts, best first. The null answer
            is empty, from 0 to 0. For several questions a list of these; for an iterable other
            than a list a generator of them, which reads `QUESTIONS_AT_ONCE` questions at a time.

        Raises:
            ValueError: A question or a context is empty, or a number is out of its range.
            TypeError: Other arguments than these.
        """
        kwargs.pop("num_workers", None)  # of transformers' Pipeline; nothing is loaded beside
        inputs = parse_inputs(
            args, {k: kwargs.pop(k) for k in ("question", "context") if k in kwargs}
        )
        batch_size = kwargs.pop("batch_size", self._batch_size)
        pre, post = self._by_step(kwargs)
        answers = (
            self.postprocess(scored, **post)
            for scored in self._answers(inputs, batch_size, pre, post)
        )
        if not isinstance(inputs, list):
            return answers
        done = list(answers)
        return done[0] if len(done) == 1 else done

    async def answer_async(self, pairs: Sequence[Pair], **parameters: Any) -> tuple[list[Any], int]:
        """Answers questions without holding up the event loop; see `TextEncoder.encode_async`.

        Args:
            pairs: One question or more, each with its context.
            **parameters: As a call takes them.

        Returns:
            What a call gives for each question, and how many tokens their windows had.

        Raises:
            ValueError: A question or a context is empty, or a number is out of its range.
            TypeError: Other arguments than these.
        """
        cutting, post = self._by_step(parameters)

        def finish(scored: list[Scored]) -> list[Any]:
            return [self.postprocess(_best(one, post, self.model), **post) for one in scored]

        return await self._joined.run([(pair, cutting) for pair in pairs], 0, finish)

    def _cut_questions(self, items: list[tuple[Pair, dict[str, Any]]]) -> list[_Question]:
        found: list[_Question] = []
        for cutting, alike in itertools.groupby(items, key=operator.itemgetter(1)):
            found.extend(map(_Question, self.preprocess([pair for pair, _ in alike], **cutting)))
        return found

    def _question_logits(self, questions: list[_Question], kind: int) -> list[Scored]:
        return list(self._scored([question.windows for question in questions], None))

    def find_answers(
        self, pairs: Iterable[Pair], *, batch_size: int | None = None, **parameters: Any
    ) -> Iterator[Answers]:
        """The scored answers to questions, as the evaluation needs them.

        Args:
            pairs: Questions with their contexts.
            batch_size: As in the class.
            **parameters: `top_k`, `doc_stride`, `max_answer_len`, `max_seq_len`,
                `max_question_len` and `align_to_words`, as in the class.

        Yields:
            The answers to each question, in order.

        Raises:
            ValueError: A question or a context is empty, or a number is out of its range.
        """
        pre, post = self._by_step(parameters)
        yield from self._answers(pairs, batch_size or self._batch_size, pre, post)

    def _answers(
        self,
        pairs: Iterable[Pair],
        batch_size: int | None,
        preprocess: dict[str, Any],
        postprocess: dict[str, Any],
    ) -> Iterator[Answers]:
        remaining = iter(pairs)
        while chunk := list(itertools.islice(remaining, QUESTIONS_AT_ONCE)):
            for scored in self._scored(self.preprocess(chunk, **preprocess), batch_size):
                yield _best(scored, postprocess, self.model)

    def _scored(self, cut: list[list[Window]], batch_size: int | None) -> Iterator[Scored]:
        """The windows of each question with their logits."""
        logits = iter(self._window_logits([w for windows in cut for w in windows], batch_size))
        for windows in cut:
            yield windows, list(itertools.islice(logits, len(windows)))

    def _window_logits(self, windows: Sequence[Window], batch_size: int | None) -> list[Logits]:
        """Scores windows in batches of similar lengths; gives them back in order."""
        order = sorted(range(len(windows)), key=lambda n: -len(windows[n]))
        found: list[Logits] = [(np.empty(0), np.empty(0))] * len(windows)
        if self.token_budget == 1:
            batch_size = 1
        budget = None if batch_size else self.token_budget
        lengths = [len(window) for window in windows]
        for batch in cut_batches(
            order, lengths.__getitem__, token_budget=budget, batch_size=batch_size
        ):
            outputs = self.forward({"windows": [windows[n] for n in batch]})
            for number, start, end in zip(batch, outputs["start"], outputs["end"], strict=True):
                found[number] = start.numpy(), end.numpy()
        return found

    def _limit(self) -> int | None:
        """Maximum number of tokens of the model; None where its config does not say."""
        config = self.model.config
        return longest_sequence(config) if hasattr(config, "max_position_embeddings") else None

    def preprocess(self, input_: Sequence[Pair], **parameters: Any) -> list[list[Window]]:
        """The windows of each question with its context; see `windows.cut_windows`."""
        for question, context in input_:
            for name, text in (("question", question), ("context", context)):
                if not text.strip():
                    raise InputError(
                        f"The {name} is empty (question {question[:60]!r}, context "
                        f"{context[:60]!r}). Add its text."
                    )
        limit = self._limit() or MAX_SEQ_LEN
        default = min(MAX_SEQ_LEN, limit, self.tokenizer.model_max_length)
        max_seq_len = parameters.pop("max_seq_len", default)
        return cut_windows(self.tokenizer, input_, max_seq_len=max_seq_len, **parameters)

    def _forward(self, input_tensors: Any, **parameters: Any) -> dict[str, list[Tensor]]:
        """Start and end logits of some windows, each (W,), float32."""
        windows: list[Window] = input_tensors["windows"]
        lengths = [len(window) for window in windows]
        self.tokens += sum(lengths)
        packed = isinstance(self.model, BertPreTrainedModel)
        if packed:
            types = [window.token_type_ids for window in windows]
            inputs = packed_inputs([window.input_ids for window in windows], types, self.device)
        else:
            inputs = self._padded(windows)
        outputs = self.model(**inputs, return_dict=True)

        def each(logits: Tensor) -> list[Tensor]:
            if packed:
                return list(logits[0].float().split(lengths))
            return [row[:length] for row, length in zip(logits.float(), lengths, strict=True)]

        return {"start": each(outputs.start_logits), "end": each(outputs.end_logits)}

    def _padded(self, windows: Sequence[Window]) -> dict[str, Tensor]:
        """The windows as rows, (windows, longest W), for models of other classes."""
        rows = {
            "input_ids": [window.input_ids for window in windows],
            "token_type_ids": [window.token_type_ids for window in windows],
        }
        batch = self.tokenizer.pad(rows, padding_side="right", return_tensors="pt")
        names = self.tokenizer.model_input_names
        return {k: v.to(self.device) for k, v in batch.items() if k in names}

    def postprocess(
        self,
        model_outputs: Answers,
        top_k: int = 1,
        handle_impossible_answer: bool | None = None,
        null_score_diff_threshold: float | None = None,
        **parameters: Any,
    ) -> Any:
        """Answers in transformers' form; see `__call__`."""
        if handle_impossible_answer is None:
            tuned = getattr(self.model.config, "null_score_diff_threshold", None)
            handle_impossible_answer = tuned is not None
        threshold = null_score_diff_threshold
        if threshold is None:
            threshold = self.null_score_diff_threshold
        answers = [
            {
                "score": span.probability,
                "start": span.start,
                "end": span.end,
                "answer": model_outputs.text(span),
            }
            for span in model_outputs.spans
        ]
        if handle_impossible_answer:
            scores = [span.score for span in model_outputs.spans]
            place = sum(model_outputs.null_score - score <= threshold for score in scores)
            null = {"score": model_outputs.null_probability, "start": 0, "end": 0, "answer": ""}
            answers.insert(place, null)
        answers = answers[:top_k]
        return answers[0] if len(answers) == 1 else answers

    def _by_step(self, parameters: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arguments of a call, and those that the pipeline was made with, by step."""
        pre, _, post = self._sanitize_parameters(**parameters)
        return {**self._preprocess_params, **pre}, {**self._postprocess_params, **post}

    def _sanitize_parameters(
        self, padding: Any = None, **parameters: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Sorts arguments by the step that takes them, and checks them.

        `padding` is one of transformers 4's arguments; there is nothing to pad here.
        """
        unknown = [name for name in parameters if name not in (*_PREPROCESS, *_POSTPROCESS, *_NULL)]
        if unknown:
            known = ", ".join((*_PREPROCESS, *_POSTPROCESS, *_NULL))
            raise TypeError(f"unknown argument {unknown[0]!r}; question answering takes {known}")
        given = {name: value for name, value in parameters.items() if value is not None}
        check_ranges(AnswerOptions(**given))
        pre = {name: given[name] for name in _PREPROCESS if name in given}
        post = {name: given[name] for name in (*_POSTPROCESS, *_NULL) if name in given}
        limit = self._limit()
        longest = pre.get("max_seq_len", limit or MAX_SEQ_LEN)
        if limit is not None:
            check_length("max_seq_len", longest, 1, limit)
        check_lengths(longest, pre.get("doc_stride"), pre.get("max_question_len", MAX_QUESTION_LEN))
        return pre, {}, post


def _best(scored: Scored, parameters: dict[str, Any], model: Any) -> Answers:
    """The answers to a question, by those of the parameters that choose among spans."""
    windows, logits = scored
    for pair in logits:
        check_numbers(np.stack(pair), model)
    starts, ends = zip(*logits, strict=True)
    scoring = {name: parameters[name] for name in _POSTPROCESS if name in parameters}
    return best_answers(windows, starts, ends, **scoring)
