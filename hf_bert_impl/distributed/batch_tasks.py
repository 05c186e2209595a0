"""Callables that add a model's results to a batch, for Ray Data, `datasets` and bulk jobs.

They follow Ray Data's convention: the constructor loads the model, and a call takes a batch of
columns and returns it with further columns.

    import ray
    from hf_bert_impl.distributed import EmbedTexts

    data = ray.data.read_parquet("texts")
    data = data.map_batches(EmbedTexts, fn_constructor_args=("my-bert",), concurrency=2)

With `datasets`: `table.map(EmbedTexts("my-bert"), batched=True)`.

The model computes `token_budget` tokens at once, without padding, whatever the size of a batch. On
the CPU and in one precision, a row's result has the same bits in any batch and any process.
"""

from __future__ import annotations

import abc
import datetime
import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.utils import CONFIG_NAME, cached_file
from transformers.utils.hub import extract_commit_hash

from hf_bert_impl.data.arrow_records import column_values
from hf_bert_impl.data.option_ranges import COUNT
from hf_bert_impl.data.text_input import check_record_text
from hf_bert_impl.data.vector_table import arrow_table
from hf_bert_impl.errors import InputError, one_line
from hf_bert_impl.freed_memory import keep_freed_memory
from hf_bert_impl.head_names import check_name, unreadable

#: Columns of equal length: a dictionary of lists or arrays, a pandas DataFrame, or a pyarrow table.
Batch = Any


class BatchTask(abc.ABC):
    """A callable that adds columns to a batch.

    A pickle holds the arguments, and the sizes and times of the model's files. Unpickling loads the
    model again. So the cache of `datasets` is valid until the files change.

    Args:
        columns: Columns to read.
        output_columns: Columns to add.
        threads: Number of threads. None takes a Ray actor's CPUs, or one thread in a process of
            `multiprocessing` (`num_proc` of `datasets`); other processes keep their setting.

    Subclasses also take:
        model: A folder or a hub id.
        dtype: "float32", "bfloat16", "float16", "int8", "auto", or None for the saved dtype.
        batch_invariant: Whether a row has the same bits in any batch. Use False on a GPU, which
            cannot guarantee it.
        token_budget: Maximum number of tokens that the model computes at once.
    """

    counter: Any
    """The object that counts `tokens`."""
    model: Any
    """The model of transformers or of this package."""
    _made_by: functools.partial[Any]

    def __init__(
        self, threads: int | None, columns: tuple[str, ...], output_columns: tuple[str, ...]
    ) -> None:
        self.columns, self.output_columns = columns, output_columns
        # A worker process has a Ray actor's CPUs, or one thread.
        share, ray = None, sys.modules.get("ray")
        # `datasets` has a multiprocessing of its own.
        libraries = (sys.modules.get(name) for name in ("multiprocessing", "multiprocess"))
        if any(library and library.parent_process() for library in libraries):
            share = 1
        if ray is not None and ray.is_initialized():
            context = ray.get_runtime_context()
            if context.worker.mode == ray.WORKER_MODE:
                share = max(1, int(context.get_assigned_resources().get("CPU", 1)))
        if share is not None:  # a process of our own, whose settings affect no other code
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
        return _make_again, (made_by, sorted(facts_of("model file", model).items()))

    def __call__(self, batch: Batch) -> Any:
        """Adds the results to a batch.

        Returns:
            A dictionary, or a pyarrow table for a pyarrow batch.

        Raises:
            InputError: A column is missing, is a single row, or holds anything but texts.
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
        """Computes the values of `output_columns` from the texts of `columns`."""

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
            check_record_text(f"row {row} of column {column!r}", text)
        return texts


def _make_again(made_by: functools.partial[BatchTask], files: object) -> BatchTask:
    """Unpickles a task. The model's files only distinguish pickles."""
    return made_by()


def facts_of(name: str, place: str) -> dict[str, str]:
    """Sizes and times of a file, or of a folder's files; the commit of a hub id.

    Args:
        name: Precedes the names of a folder's files.
        place: A path or a hub id.

    Raises:
        OSError: There is no such path, and no config under this id.
    """
    path = Path(place).expanduser()
    if not path.exists():
        check_name(place)
        try:
            config = cached_file(place, CONFIG_NAME)
        except OSError as error:
            raise unreadable(str(place), error) from error
        return {"commit": str(extract_commit_hash(config, None))}
    files = {name: path}
    if path.is_dir():
        known = (".safetensors", ".bin", ".json", ".txt", ".model", ".arrow")
        inside = sorted(file for file in path.rglob("*") if file.is_file())
        files = {
            f"{name} {file.relative_to(path)}": file for file in inside if file.suffix in known
        }
    facts = {}
    for label, file in files.items():
        status = file.stat()
        seconds, rest = divmod(status.st_mtime_ns, 10**9)
        time = f"{datetime.datetime.fromtimestamp(seconds)}.{rest:09}"
        facts[label] = f"{status.st_size} bytes of {time}"
    return facts


class EmbedTexts(BatchTask):
    """Adds the vector of each text, (D,) float32.

    Args:
        model: As in `BatchTask`, like all arguments not listed here.
        column: The texts.
        output_column: Their vectors.
        normalize: Scale vectors to length 1.
        prompt_name: The name of a prompt of the model, which precedes each text.
        prompt: The prompt itself.
        truncate_dim: Keep the first numbers of each vector only.
        **options: Further arguments of `TextEncoder`, such as `device`.
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
        self.encoder = self.counter = TextEncoder(model, batch_invariant=batch_invariant, **options)
        self.model = self.encoder.transformers_model
        self._encode = functools.partial(
            self.encoder.encode,
            normalize_embeddings=normalize,
            prompt_name=prompt_name,
            prompt=prompt,
            truncate_dim=truncate_dim,
            token_budget=token_budget,
        )

    def compute(self, *texts: list[str]) -> tuple[Any, ...]:
        return (self._encode(texts[0]),)


class Classify(BatchTask):
    """Adds the most probable label of each text, and its probability.

    Args:
        model: A sequence classifier with two labels or more.
        column: The texts.
        output_column: Their labels.
        score_column: The probabilities of these labels.
        **options: Further arguments of `BatchTask`.
    """

    def __init__(
        self,
        model: str,
        column: str = "text",
        output_column: str = "label",
        score_column: str = "score",
        *,
        dtype: str | None = None,
        batch_invariant: bool = True,
        token_budget: int | None = None,
        threads: int | None = None,
    ) -> None:
        from hf_bert_impl.inference.classifier import TextClassifier
        from hf_bert_impl.inference.loading import load_prepared

        super().__init__(threads, (column,), (output_column, score_column))
        head = "sequence-classification"
        loaded, tokenizer = load_prepared(model, head, dtype, batch_invariant)
        self.classifier = self.counter = TextClassifier(loaded, tokenizer, token_budget)
        self.model = loaded
        self._labels = np.array(self.classifier.labels, dtype=object)

    def compute(self, *texts: list[str]) -> tuple[Any, ...]:
        scores = self.classifier.probabilities(self.classifier.logits(texts[0]))
        best = scores.argmax(axis=1)
        return self._labels[best], scores[np.arange(len(best)), best]


class Answer(BatchTask):
    """Adds the best answer to each question, with its score and position in the context.

    Args:
        model: A model fine-tuned for question answering.
        question_column: The questions.
        context_column: Their contexts.
        output_columns: The answer, its probability, its first character and the one after its last.
        dtype: As in `BatchTask`, like `batch_invariant` and `threads`.
        batch_invariant: As there.
        threads: As there.
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
        self.answering = self.counter = QuestionAnsweringPipeline.from_pretrained(
            model, dtype=dtype, batch_invariant=batch_invariant, **options
        )
        self.model = self.answering.model

    def compute(self, *texts: list[str]) -> tuple[Any, ...]:
        asked = [{"question": q, "context": c} for q, c in zip(*texts, strict=True)]
        # A list of one question would return its answer without a list.
        answers = list(self.answering(iter(asked), top_k=1))
        kinds = {"answer": object, "score": np.float64, "start": np.int64, "end": np.int64}
        return tuple(np.array([one[name] for one in answers], kinds[name]) for name in kinds)
