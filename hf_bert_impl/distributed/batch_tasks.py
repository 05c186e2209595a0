"""What is computed of a batch of rows, as classes for Ray Data, `datasets` and the bulk engine.

Ray Data's convention: the model is loaded where an object is made, and a call takes a batch of
columns and gives the same columns and its own.

    import ray
    from hf_bert_impl.distributed import EmbedTexts

    data = ray.data.read_parquet("texts")
    data = data.map_batches(EmbedTexts, fn_constructor_args=("my-bert",), concurrency=2)

With `datasets` a batch is the same: `table.map(EmbedTexts("my-bert"), batched=True)`.

The rows of a batch are only how many come at once: the model gets as many of them as hold
`token_budget` tokens, without padding. Each row's result has the same bits in any batch and in any
number of processes, on the CPU and in the same precision.
"""

from __future__ import annotations

import abc
import functools
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from hf_bert_impl import checkpoints
from hf_bert_impl.data.arrow_records import column_values
from hf_bert_impl.data.option_ranges import COUNT
from hf_bert_impl.data.token_budget import TOKEN_BUDGET, cut_batches
from hf_bert_impl.data.vector_table import arrow_table
from hf_bert_impl.distributed.digests import weights_digest
from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.families.table import longest_sequence
from hf_bert_impl.freed_memory import keep_freed_memory

#: Columns by name, as long as each other: a dictionary of lists or arrays, a DataFrame of pandas,
#: or a table of pyarrow.
Batch = Any


class BatchTask(abc.ABC):
    """A callable that adds columns to a batch.

    A pickle holds the arguments and a digest of the model's files, and not the model, which is
    loaded again where it arrives. So `datasets` finds what it computed before, and computes again
    where the files have changed.

    Args:
        columns: Those that are read.
        output_columns: Those that are added.
        threads: What this process computes with. None takes the CPUs of the Ray actor that it is
            in, one in a process of `multiprocessing` (`num_proc` of `datasets`), and elsewhere
            changes nothing.

    All tasks take these too:
        model: A folder or a hub id.
        dtype: "float32", "bfloat16", "float16", "int8", "auto", or None for what the weights are
            saved in.
        token_budget: Most tokens that the model gets at once (`Answer` has its own).
    """

    columns: tuple[str, ...]
    output_columns: tuple[str, ...]
    _made_by: functools.partial[Any]

    def __init__(
        self, threads: int | None, columns: tuple[str, ...], output_columns: tuple[str, ...]
    ) -> None:
        self.columns, self.output_columns = columns, output_columns
        share = _threads_here()
        if share is not None:  # a worker process, whose settings affect no other code
            keep_freed_memory()
        threads = share if threads is None else threads
        if threads is not None:
            COUNT.check("threads", threads)
            torch.set_num_threads(threads)

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        task = super().__new__(cls)
        task._made_by = functools.partial(cls, *arguments, **options)
        return task

    def __reduce__(self) -> tuple[Any, ...]:
        made_by = self._made_by
        model = made_by.args[0] if made_by.args else made_by.keywords["model"]
        return _make_again, (made_by, weights_digest(model))

    def __call__(self, batch: Batch) -> Any:
        """The columns of the batch and its results, as a dictionary; a table for one of pyarrow.

        Raises:
            InputError: A column is missing, is a single row, or a row of it is no text.
        """
        names = batch.keys() if hasattr(batch, "keys") else getattr(batch, "column_names", None)
        if names is None:
            raise InputError(
                f"The batch is {one_line(repr(batch)):.40} ({type(batch).__name__}). Use a "
                "dictionary of columns, or a table of pandas or pyarrow (no `input_columns`)."
            )
        columns = {name: batch[name] for name in names}
        texts = [self._texts(columns, column) for column in self.columns]
        results = dict(zip(self.output_columns, self.compute(*texts), strict=True))
        return {**columns, **results} if hasattr(batch, "keys") else arrow_table(columns | results)

    @abc.abstractmethod
    def compute(self, *texts: list[str]) -> tuple[Any, ...]:
        """From the texts of each of `columns` to the values of each of `output_columns`."""

    def check(self, *texts: str) -> None:  # noqa: B027 -- most tasks take any text
        """Raises ValueError if the texts of a row, one a column, cannot be computed."""

    @property
    @abc.abstractmethod
    def tokens(self) -> int:
        """How many were computed so far."""

    @property
    def precision(self) -> str | None:
        """What the model computes in; None where it does not say."""
        return None

    def _texts(self, batch: Mapping[str, Any], column: str) -> list[str]:
        if column not in batch:
            known = ", ".join(map(repr, batch)) or "none"
            raise InputError(f"There is no column {column!r}. The columns are {known}.")
        values = batch[column]
        is_single = isinstance(values, str | bytes | bytearray | Mapping)
        if is_single or not hasattr(values, "__getitem__") or getattr(values, "ndim", 1) == 0:
            shown = one_line(repr(values))
            raise InputError(
                f"Column {column!r} is {shown:.40} ({type(values).__name__}), a single row. Call "
                "`datasets.map` with batched=True, or Ray Data's map_batches."
            )
        texts = column_values(values) if hasattr(values, "to_pylist") else list(values)
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise InputError(
                    f"Row {row} of column {column!r} is {text!r:.40}, not a str. Filter such rows "
                    "out, or run `hf-bert` with --engine ray, which lists them and continues."
                )
        return texts


def _make_again(made_by: functools.partial[BatchTask], digest: str) -> BatchTask:
    """A task out of a pickle; the digest is only there to be part of it."""
    return made_by()


def _threads_here() -> int | None:
    """The share of this process: that of a Ray actor, or of one among others; None if neither."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        context = ray.get_runtime_context()
        if context.worker.mode == ray.WORKER_MODE:
            return max(1, int(context.get_assigned_resources().get("CPU", 1)))
    # `datasets` has a multiprocessing of its own.
    libraries = (sys.modules.get(name) for name in ("multiprocessing", "multiprocess"))
    return 1 if any(it is not None and it.parent_process() for it in libraries) else None


class EmbedTexts(BatchTask):
    """The vectors of texts, (D,) float32 each.

    Args:
        model: As in `BatchTask`, and so are the arguments that are not named here.
        column: The texts.
        output_column: Their vectors.
        normalize: Make vectors of length 1.
        prompt_name: Which of the model's prompts to put before each text.
        prompt: The text to put before each text.
        truncate_dim: How many numbers of a vector to keep.
        batch_invariant: Give a text the same bits in any batch. False where a GPU computes, which
            cannot keep that promise.
        **options: Further arguments of `TextEncoder.from_pretrained`, such as `device`.
    """

    def __init__(
        self,
        model: str,
        column: str = "text",
        output_column: str = "vector",
        *,
        normalize: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate_dim: int | None = None,
        batch_invariant: bool = True,
        token_budget: int | None = None,
        threads: int | None = None,
        **options: Any,
    ) -> None:
        from hf_bert_impl.text_encoder import TextEncoder

        super().__init__(threads, (column,), (output_column,))
        self.encoder = TextEncoder.from_pretrained(
            model, batch_invariant=batch_invariant, **options
        )
        self._encode = functools.partial(
            self.encoder.encode,
            normalize_embeddings=normalize,
            prompt_name=prompt_name,
            prompt=prompt,
            truncate_dim=truncate_dim,
            token_budget=token_budget,
        )

    @property
    def tokens(self) -> int:
        return self.encoder.tokens

    @property
    def precision(self) -> str:
        return self.encoder.precision

    def compute(self, *texts: list[str]) -> tuple[Any, ...]:
        return (self._encode(texts[0]),)


class _Classifier(BatchTask):
    """Loads a sequence classifier."""

    def __init__(
        self,
        model: str,
        columns: tuple[str, ...],
        output_columns: tuple[str, ...],
        *,
        dtype: str | None = None,
        batch_invariant: bool = True,
        token_budget: int | None = None,
        threads: int | None = None,
    ) -> None:
        from hf_bert_impl.inference.classifier import TextClassifier
        from hf_bert_impl.inference.loading import budget_for

        super().__init__(threads, columns, output_columns)
        bert, tokenizer = checkpoints.load_prepared(
            model, "sequence-classification", dtype, batch_invariant
        )
        budget = budget_for(bert, token_budget, batch_invariant)
        self.classifier = TextClassifier(bert, tokenizer, budget)

    @property
    def tokens(self) -> int:
        return self.classifier.tokens


class Classify(_Classifier):
    """The most probable label of each text, with its probability.

    Args:
        model: A sequence classifier with two labels or more; all else as in `BatchTask`.
        column: The texts.
        output_column: Their labels.
        score_column: The probability of each of them.
        **options: Further arguments of `BatchTask`.
    """

    def __init__(
        self,
        model: str,
        column: str = "text",
        output_column: str = "label",
        score_column: str = "score",
        **options: Any,
    ) -> None:
        super().__init__(model, (column,), (output_column, score_column), **options)
        self._labels = np.array(self.classifier.labels, dtype=object)

    def compute(self, *texts: list[str]) -> tuple[Any, ...]:
        scores = self.classifier.probabilities(self.classifier.logits(texts[0]))
        best = scores.argmax(axis=1)
        return self._labels[best], scores[np.arange(len(best)), best]


class ScorePairs(_Classifier):
    """The score of each pair, by a cross-encoder: its single logit, or the probability of it.

    Args:
        model: A sequence classifier with one label.
        query_column: The first text of a pair.
        column: The second one.
        output_column: The scores, float32.
        probabilities: Give the sigmoid of the logit, as sentence-transformers does by default.
        **options: Further arguments of `BatchTask`.
    """

    def __init__(
        self,
        model: str,
        query_column: str = "query",
        column: str = "text",
        output_column: str = "score",
        *,
        probabilities: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(model, (query_column, column), (output_column,), **options)
        self._probabilities = probabilities
        count = len(self.classifier.labels)
        if count != 1:
            raise InputError(
                f"{model} has {count} labels; a cross-encoder has one. Use `Classify`."
            )

    def compute(self, *texts: list[str]) -> tuple[Any, ...]:
        logits = self.classifier.logits(*texts)
        if self._probabilities:
            logits = self.classifier.probabilities(logits)
        return (logits[:, 0],)


class Answer(BatchTask):
    """The best answer to each question, with its score and where it stands in the context.

    Args:
        model: A BERT that was fine-tuned for question answering.
        question_column: The questions.
        context_column: The text that holds the answer to each.
        output_columns: The answer, its probability, its first character and the one after its last.
        dtype: As in `BatchTask`.
        batch_invariant: As in `EmbedTexts`.
        threads: As in `BatchTask`.
        **options: Further arguments of `QuestionAnsweringPipeline`, such as `max_answer_len`.
    """

    def __init__(
        self,
        model: str,
        question_column: str = "question",
        context_column: str = "context",
        output_columns: tuple[str, str, str, str] = ("answer", "score", "start", "end"),
        *,
        dtype: str | None = None,
        batch_invariant: bool = True,
        threads: int | None = None,
        **options: Any,
    ) -> None:
        from hf_bert_impl.inference.question_answering import QuestionAnsweringPipeline

        super().__init__(threads, (question_column, context_column), tuple(output_columns))
        self.answering = QuestionAnsweringPipeline.from_pretrained(
            model, dtype=dtype, batch_invariant=batch_invariant, **options
        )

    @property
    def tokens(self) -> int:
        return self.answering.tokens

    def check(self, *texts: str) -> None:
        for column, text in zip(self.columns, texts, strict=True):
            if not text.strip():
                raise InputError(f"The {column} is empty. Add its text.")

    def compute(self, *texts: list[str]) -> tuple[Any, ...]:
        asked = [{"question": q, "context": c} for q, c in zip(*texts, strict=True)]
        # An iterable gives an answer a question, also where there is one question alone.
        found = list(self.answering(iter(asked), top_k=1))
        columns = ([one[name] for one in found] for name in ("answer", "score", "start", "end"))
        kinds: tuple[Any, ...] = (object, np.float64, np.int64, np.int64)
        return tuple(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True))


class FillMask(BatchTask):
    """The most probable tokens for each mask of each text, with their probabilities.

    Args:
        model: A BERT with a masked-LM head.
        column: The texts, each with the tokenizer's mask token in it.
        output_columns: For each text the tokens and their probabilities, a list of `top_k` a mask.
        top_k: How many tokens a mask.
        dtype: As in `BatchTask`.
        batch_invariant: As in `EmbedTexts`.
        token_budget: As in `BatchTask`.
        threads: As in `BatchTask`.
    """

    def __init__(
        self,
        model: str,
        column: str = "text",
        output_columns: tuple[str, str] = ("tokens", "scores"),
        *,
        top_k: int = 5,
        dtype: str | None = None,
        batch_invariant: bool = True,
        token_budget: int | None = None,
        threads: int | None = None,
    ) -> None:
        from hf_bert_impl.inference.loading import budget_for

        super().__init__(threads, (column,), tuple(output_columns))
        COUNT.check("top_k", top_k)
        self.model, self.tokenizer = checkpoints.load_prepared(
            model, "masked-lm", dtype, batch_invariant
        )
        self._top_k = min(top_k, self.model.config.vocab_size)
        self._budget = budget_for(self.model, token_budget, batch_invariant) or TOKEN_BUDGET
        self._tokens = 0

    @property
    def tokens(self) -> int:
        return self._tokens

    def check(self, *texts: str) -> None:
        from hf_bert_impl.inference.masked_words import encode_masked

        encode_masked(self.tokenizer, texts[0], longest_sequence(self.model.config))

    def compute(self, *texts: list[str]) -> tuple[Any, ...]:
        from hf_bert_impl.inference.masked_words import best_tokens, encode_masked

        limit = longest_sequence(self.model.config)
        ids = [encode_masked(self.tokenizer, text, limit) for text in texts[0]]
        found: list[Any] = []
        for batch in cut_batches(ids, len, token_budget=self._budget):
            self._tokens += sum(map(len, batch))
            found += best_tokens(self.model, self.tokenizer, batch, self._top_k)
        return tuple(
            [[[best[name] for best in mask["predictions"]] for mask in masks] for masks in found]
            for name in ("token", "probability")
        )
