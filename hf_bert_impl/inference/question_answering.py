"""Extractive question answering: the pipeline that transformers 5 removed, without padding.

Notation: W tokens of a window.
"""

from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.pipelines.base import Pipeline

from hf_bert_impl.checkpoints import open_checkpoint
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
from hf_bert_impl.encoders.lengths import longest_sequence
from hf_bert_impl.encoders.probe import why_not
from hf_bert_impl.errors import InputError
from hf_bert_impl.finite import check_numbers
from hf_bert_impl.inference.answer_options import AnswerOptions
from hf_bert_impl.inference.batching import padded_inputs
from hf_bert_impl.inference.loading import (
    load_tokenizer,
    load_whole,
    loading_options,
    prepare_model,
)
from hf_bert_impl.inference.question_answering_inputs import Pair, parse_inputs
from hf_bert_impl.model.modeling_bert import BertPreTrainedModel

#: Number of questions to sort and compute together.
QUESTIONS_AT_ONCE = 1024

#: Start and end logits of a window, (W,) each.
Logits = tuple[np.ndarray, np.ndarray]
#: The windows of a question, and their logits.
Scored = tuple[list[Window], list[Logits]]
_PREPROCESS = ("max_seq_len", "doc_stride", "max_question_len")
_POSTPROCESS = ("top_k", "max_answer_len", "align_to_words")
_NULL = ("handle_impossible_answer", "null_score_diff_threshold")


class QuestionAnsweringPipeline(Pipeline):
    """Finds the answer to a question in a text, with the arguments and outputs of transformers 4.

    The windows of all questions are sorted by length and computed in batches without padding.
    transformers' own models are computed in padded batches, or without padding after `optimize`.

    If a context fits in one window, transformers 4 gives the same answers. Otherwise each token
    counts in the window with the most context around it, and scores are compared across windows, as
    in run_squad.py (see `hf_bert_impl.data.answer_spans`). transformers 4 compared probabilities
    within each window, and repeated answers.

    `AnswerOptions` and `batch_size` can be given here for all calls, or per call.

    Args:
        model: A `BertForQuestionAnswering`. It is set to eval mode.
        tokenizer: Its tokenizer.
        prepare: Pack the weights for the CPU's kernels (`prepare_for_inference`). A dtype, e.g.
            "bfloat16" or "int8", converts them first. False leaves the model as it is.
        batch_invariant: Sets `model.config.batch_invariant`: answers and scores have the same bits
            in any batch and order. A model of another family then computes each window alone. False
            keeps the setting of the config.
        batch_size: Maximum number of windows per batch; by default `TOKEN_BUDGET` tokens.
        **kwargs: The fields of `AnswerOptions`, and arguments of transformers' `Pipeline`, such as
            `device`.

    Raises:
        ValueError: A number is out of range, or the model cannot be batch-invariant. A call on a
            GPU raises it with `batch_invariant`.
        TypeError: The model does not answer questions, or an argument is unknown.

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
                f"The model is {type(model).__name__}, which does not answer questions. Give an "
                "hf_bert_impl.BertForQuestionAnswering."
            )
        is_bert = isinstance(model, BertPreTrainedModel)
        if batch_invariant and not is_bert and why_not(model) is not None:
            raise InputError(
                f"A {type(model).__name__} cannot be batch-invariant. Load the model by "
                "hf_bert_impl.BertForQuestionAnswering, or leave `batch_invariant` out.",
                "batch_invariant",
            )
        super().__init__(model=model.eval(), tokenizer=tokenizer, **kwargs)
        #: Number of tokens computed so far.
        self.tokens = 0
        #: Maximum number of tokens per batch.
        self.token_budget = 1 if batch_invariant and not is_bert else TOKEN_BUDGET
        if batch_invariant and is_bert:  # the choice of kernels depends on it
            model.config.batch_invariant = True
        dtype = None if isinstance(prepare, bool) else prepare
        is_known = is_bert or why_not(model) is None
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
            path: A folder or a hub id of a model fine-tuned for question answering.
            dtype: "float32", "bfloat16", "float16", "int8", "auto", or a torch
                dtype, as for `prepare_for_inference`; None for the saved dtype.
            device: None takes a GPU if there is one.
            prepare: Pack the weights for the CPU's kernels.
            **kwargs: Arguments of the pipeline, such as `batch_invariant`.

        Returns:
            The pipeline.

        Raises:
            ValueError: The dtype is unknown, or weights are missing or not finite.
            OSError: The folder, the model or one of its files is missing.
        """
        options = loading_options(dtype, prepare)
        checkpoint = open_checkpoint(os.fspath(path), with_tokenizer=True, any_family=True)
        remedy = "name a model fine-tuned for question answering"
        model, _ = load_whole(checkpoint, "question-answering", remedy, **options)
        if device is not None:
            kwargs["device"] = device
        packing = dtype if prepare and dtype else prepare
        return cls(model, load_tokenizer(checkpoint.path), prepare=packing, **kwargs)

    @property
    def null_score_diff_threshold(self) -> float:
        """The threshold of the model's config, or 0."""
        return float(getattr(self.model.config, "null_score_diff_threshold", None) or 0)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answers questions.

        Args:
            *args: Alternatives to the keywords. Either a question and a context, or one dict with
                `question` and `context`, or an iterable of such dicts.
            question: A question, or a list.
            context: The context of all questions, or a list with one per question.
            **kwargs: See the class.

        Returns:
            One question gets a dict. `answer` is context[start:end], with these offsets in `start`
            and `end`. `score` is the probability of the start times the probability of the end.
            With `top_k` above 1 it gets a list of dicts, best first. The null answer is empty, from
            0 to 0. Several questions get a list of these. An iterable other
            than a list gets a generator, which reads `QUESTIONS_AT_ONCE` questions at a time.

        Raises:
            ValueError: A question or a context is empty, or a number is out of range.
            TypeError: The arguments have another form.
        """
        kwargs.pop("num_workers", None)  # an argument of Pipeline without effect here
        inputs = parse_inputs(
            args, {k: kwargs.pop(k) for k in ("question", "context") if k in kwargs}
        )
        batch_size = kwargs.pop("batch_size", self._batch_size)
        _, post = self._by_step(kwargs)
        answers = (
            self.postprocess(scored, **post) for scored in self._answers(inputs, batch_size, kwargs)
        )
        if not isinstance(inputs, list):
            return answers
        done = list(answers)
        return done[0] if len(done) == 1 else done

    def find_answers(
        self, pairs: Iterable[Pair], *, batch_size: int | None = None, **parameters: Any
    ) -> Iterator[Answers]:
        """The scored answers to questions, for evaluation.

        Args:
            pairs: Questions with their contexts.
            batch_size: As in the class.
            **parameters: `top_k`, `doc_stride`, `max_answer_len`, `max_seq_len`,
                `max_question_len` and `align_to_words`, as in the class.

        Yields:
            The answers to each question, in order.

        Raises:
            ValueError: A question or a context is empty, or a number is out of range.
        """
        return self._answers(pairs, batch_size or self._batch_size, parameters)

    def _answers(
        self, pairs: Iterable[Pair], batch_size: int | None, parameters: dict[str, Any]
    ) -> Iterator[Answers]:
        cutting, post = self._by_step(parameters)
        remaining = iter(pairs)
        while chunk := list(itertools.islice(remaining, QUESTIONS_AT_ONCE)):
            for scored in self._scored(self.preprocess(chunk, **cutting), batch_size):
                yield _best(scored, post, self.model)

    def _scored(self, cut: list[list[Window]], batch_size: int | None) -> Iterator[Scored]:
        """The windows of each question with their logits."""
        logits = iter(self._window_logits([w for windows in cut for w in windows], batch_size))
        for windows in cut:
            yield windows, list(itertools.islice(logits, len(windows)))

    def _window_logits(self, windows: Sequence[Window], batch_size: int | None) -> list[Logits]:
        """Scores windows in batches of similar lengths; returns the logits in the given order."""
        lengths = [len(window) for window in windows]
        order = sorted(range(len(windows)), key=lambda n: -lengths[n])
        logits: dict[int, Logits] = {}
        # A budget of 1 makes each window a batch of its own.
        budget = None if batch_size and self.token_budget != 1 else self.token_budget
        limits = {"token_budget": budget, "batch_size": batch_size}
        for batch in cut_batches(order, lengths.__getitem__, **limits):
            outputs = self.forward({"windows": [windows[n] for n in batch]})
            for number, start, end in zip(batch, outputs["start"], outputs["end"], strict=True):
                logits[number] = start.numpy(), end.numpy()
        return [logits[number] for number in range(len(windows))]

    def _limit(self) -> int | None:
        """Maximum number of tokens of the model; None if its config does not tell."""
        config = self.model.config
        return longest_sequence(config) if hasattr(config, "max_position_embeddings") else None

    def check(self, pairs: Sequence[Pair], tokenizer: Any = None, **parameters: Any) -> None:
        """Checks the arguments of a call.

        Args:
            pairs: Questions with their contexts.
            tokenizer: Also cuts the contexts, as `preprocess` does; for use in another thread.
            **parameters: Arguments of a call.

        Raises:
            ValueError: A question or a context is empty, or a number is out of range.
        """
        cutting, _ = self._by_step(parameters)
        for question, context in pairs:
            for name, text in (("question", question), ("context", context)):
                if not text.strip():
                    raise InputError(
                        f"The {name} is empty (question {question[:60]!r}, context "
                        f"{context[:60]!r}). Add its text."
                    )
        if tokenizer is not None:
            self._cut(tokenizer, pairs, cutting)

    def preprocess(self, input_: Sequence[Pair], **parameters: Any) -> list[list[Window]]:
        """The windows of each question with its context; see `windows.cut_windows`."""
        self.check(input_)
        return self._cut(self.tokenizer, input_, parameters)

    def _cut(
        self, tokenizer: Any, pairs: Sequence[Pair], parameters: dict[str, Any]
    ) -> list[list[Window]]:
        limits = (MAX_SEQ_LEN, self._limit() or MAX_SEQ_LEN, self.tokenizer.model_max_length)
        return cut_windows(tokenizer, pairs, **{"max_seq_len": min(limits)} | parameters)

    def _forward(self, input_tensors: Any, **parameters: Any) -> dict[str, list[Tensor]]:
        """Start and end logits of some windows, each (W,), float32."""
        windows: list[Window] = input_tensors["windows"]
        lengths = [len(window) for window in windows]
        self.tokens += sum(lengths)
        is_bert = isinstance(self.model, BertPreTrainedModel)
        has_types = is_bert or "token_type_ids" in self.tokenizer.model_input_names
        names = ("input_ids", "token_type_ids")[: 1 + has_types]
        rows = [{name: getattr(window, name) for name in names} for window in windows]
        outputs = self.model(**padded_inputs(rows, self.tokenizer, self.device), return_dict=True)
        starts, ends = (
            [row[:length] for row, length in zip(logits.float(), lengths, strict=True)]
            for logits in (outputs.start_logits, outputs.end_logits)
        )
        return {"start": starts, "end": ends}

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
        if null_score_diff_threshold is None:
            null_score_diff_threshold = self.null_score_diff_threshold
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
            leads = (model_outputs.null_score - span.score for span in model_outputs.spans)
            place = sum(lead <= null_score_diff_threshold for lead in leads)
            null = {"score": model_outputs.null_probability, "start": 0, "end": 0, "answer": ""}
            answers.insert(place, null)
        answers = answers[:top_k]
        return answers[0] if len(answers) == 1 else answers

    def _by_step(self, parameters: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arguments of a call and of the pipeline, by step."""
        pre, _, post = self._sanitize_parameters(**parameters)
        return {**self._preprocess_params, **pre}, {**self._postprocess_params, **post}

    def _sanitize_parameters(
        self, padding: Any = None, **parameters: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Checks arguments, and sorts them by step. `padding`, of transformers 4, has no effect."""
        unknown = [name for name in parameters if name not in (*_PREPROCESS, *_POSTPROCESS, *_NULL)]
        if unknown:
            known = ", ".join((*_PREPROCESS, *_POSTPROCESS, *_NULL))
            raise TypeError(f"The argument {unknown[0]!r} is unknown. Known are {known}.")
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
    """The answers to a question."""
    windows, logits = scored
    for pair in logits:
        check_numbers(np.stack(pair), model)
    starts, ends = zip(*logits, strict=True)
    scoring = {name: parameters[name] for name in _POSTPROCESS if name in parameters}
    return best_answers(windows, starts, ends, **scoring)
