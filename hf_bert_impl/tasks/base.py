"""Tasks: how data are read, what the model gets, and how its outputs are scored.

Fine-tuning and evaluation share these classes, so that a score means the same in both.
"""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from hf_bert_impl.data.documents import without_breaks
from hf_bert_impl.data.option_ranges import check_length
from hf_bert_impl.data.task_collator import Feature, collate, ids_and_types, token_count
from hf_bert_impl.data.task_files import Row, read_dataset, read_rows
from hf_bert_impl.data.token_budget import cut_batches
from hf_bert_impl.encoders.lengths import longest_sequence
from hf_bert_impl.errors import InputError, check_choice
from hf_bert_impl.inference.eval_mode import eval_mode
from hf_bert_impl.tasks.metrics import Metrics

#: Tokens per batch of predictions; no result depends on it.
TOKEN_BUDGET = 4096
LOWER_IS_BETTER = ("loss", "perplexity", "mse")
#: Other names of metrics.
METRIC_NAMES = {"mcc": "matthews_correlation"}


@dataclasses.dataclass(frozen=True)
class Columns:
    """Columns of a file: names of its header, or numbers from 0; None for the task's default.

    `text` is the text or its words, `pair` the second text of a pair or the choices.
    """

    text: str | None = None
    pair: str | None = None
    label: str | None = None


@dataclasses.dataclass(frozen=True)
class Example:
    """One record, with its place for messages.

    `text` is a text or a list of words. `pair` is None, a text or a list of choices. `label` is a
    name, a list of names, a number or None.
    """

    text: Any
    pair: Any
    label: Any
    place: str


@dataclasses.dataclass
class Split:
    """Examples and their model inputs."""

    examples: list[Any]
    features: list[Feature]


class Task(ABC):
    """A kind of task.

    Args:
        columns: The columns of its files.
        dataset: A `datasets` id that splits are read from instead of files.
    """

    #: As in `hf-bert finetune --task NAME`.
    name: ClassVar[str]
    #: The model's class.
    head: ClassVar[str]
    #: The score that compares checkpoints.
    best_metric: str
    #: All scores of `score`.
    metrics: ClassVar[tuple[str, ...]] = ()
    #: Maximum tokens of a sequence, where the model allows as many.
    default_max_length: ClassVar[int] = 512
    #: Minimum number of labels to learn; 0 for tasks without label names.
    min_labels: ClassVar[int] = 0

    def __init__(self, columns: Columns | None = None, dataset: str | None = None) -> None:
        self.columns = columns or Columns()
        self.dataset = dataset
        #: Label names in the order of their numbers.
        self.labels: list[str] = []

    @property
    def greater_is_better(self) -> bool:
        """Whether a greater `best_metric` is better."""
        return self.best_metric not in LOWER_IS_BETTER

    def choose_metric(self, name: str | None) -> None:
        """Sets `best_metric`; None keeps the task's.

        Raises:
            InputError: The task has no such score.
        """
        name = METRIC_NAMES.get(str(name), name)
        if name is not None:
            check_choice("metric", name, self.metrics)
            self.best_metric = name

    # --- reading ----------------------------------------------------------------------------------

    @abstractmethod
    def read(self, source: str) -> list[Any]:
        """Reads examples from a file, or from a split of the task's data set.

        Raises:
            ValueError: The source cannot be read, or a record does not fit the task.
        """

    # --- labels -----------------------------------------------------------------------------------

    def names_in(self, example: Any) -> Sequence[str]:
        """The label names of an example."""
        return []

    def learn_labels(
        self, examples: Mapping[str, Sequence[Any]], known: Sequence[str] = ()
    ) -> None:
        """Takes the label names of the training examples.

        Args:
            examples: By the names "train", "validation" and "test".
            known: The checkpoint's names. The same names keep their order, as its head may be
                trained.

        Raises:
            ValueError: There are too few names, or another part has other names.
        """
        used = {name for example in examples["train"] for name in self.names_in(example)}
        if len(used) < self.min_labels:
            raise InputError(
                f"the training examples have {len(used)} label(s) ({', '.join(sorted(used))}), and "
                f"{self.name} needs at least {self.min_labels}. Check the label column."
            )
        self.labels = list(known) if set(known) == used else sort_labels(used)
        for part in examples.values():
            self.check_labels(part)

    def check_labels(
        self, examples: Sequence[Any], source: str = "no training example has"
    ) -> None:
        """Raises InputError for a label that the task lacks; `source` says why in the message."""
        for example in examples:
            if unseen := [name for name in self.names_in(example) if name not in self.labels]:
                shown = ", ".join(map(repr, self.labels[:20]))
                raise InputError(
                    f"{example.place} has the label {unseen[0]!r}, which {source}. Use one of "
                    f"{shown}, or train on examples with this label."
                )

    def config(self) -> dict[str, Any]:
        """The task's fields of the model's config; none without label names."""
        if not self.min_labels:
            return {}
        return {
            "num_labels": len(self.labels),
            "id2label": dict(enumerate(self.labels)),
            "label2id": {name: number for number, name in enumerate(self.labels)},
        }

    def take_config(self, config: Any, examples: Sequence[Any]) -> None:
        """Takes the label names of a model that is to be evaluated.

        Args:
            config: The model's config.
            examples: The evaluation data. If their labels are numbers and the config only has the
                default names of transformers (LABEL_0), the numbers are the names.
        """
        if not self.min_labels:
            return
        names = [config.id2label[number] for number in range(config.num_labels)]
        is_default = names == [f"LABEL_{number}" for number in range(len(names))]
        used = {name for example in examples for name in self.names_in(example)}
        numbers = [str(number) for number in range(len(names))]
        self.labels = numbers if is_default and used <= set(numbers) else names

    # --- the model --------------------------------------------------------------------------------

    @abstractmethod
    def features(self, examples: Sequence[Any], tokenizer: Any, max_length: int) -> list[Feature]:
        """The model's inputs with labels, cut at `max_length` tokens."""

    def start_head(self, model: Any, train: Split) -> None:
        """Sets weights of a new head from the training data."""
        return

    def collator(self, tokenizer: Any) -> Callable[[Sequence[Feature]], dict[str, Tensor]]:
        """The function that batches features for training."""
        return functools.partial(collate, pad_id=tokenizer.pad_token_id)

    @abstractmethod
    def predict(self, model: Any, split: Split, tokenizer: Any) -> list[Any]:
        """The model's outputs on a split, as `score` and `draw` take them, in eval mode."""

    @abstractmethod
    def part(self, split: Split, number: int, count: int) -> Split:
        """The part of a split that process `number`, from 0, of `count` predicts."""

    @abstractmethod
    def joined(self, parts: Sequence[list[Any]]) -> list[Any]:
        """The outputs of a split from the outputs of its parts, in their order."""

    # --- judging ----------------------------------------------------------------------------------

    @abstractmethod
    def score(self, split: Split, outputs: list[Any]) -> Metrics:
        """The metrics of a split's outputs."""

    def tune(self, model: Any, split: Split, outputs: list[Any]) -> None:
        """Sets parameters on the validation data that gradients do not learn."""
        return

    def is_better(self, scores: Mapping[str, float], others: Mapping[str, float]) -> bool:
        """Whether the scores are better than others."""
        one, other = scores[self.best_metric], others[self.best_metric]
        return one > other if self.greater_is_better else one < other

    def draw(self, file: Path, split: Split, outputs: list[Any], title: str) -> bool:
        """Draws the outputs against the gold labels; returns whether the task has a picture."""
        return False


class RowTask(Task):
    """A task whose examples are rows of a table and whose outputs belong to features."""

    text_column: ClassVar[str] = "text"
    label_column: ClassVar[str] = "label"

    def read(self, source: str) -> list[Any]:
        return [self.example(row) for row in self.rows(source, self.names(source))]

    def rows(self, source: str, names: Sequence[str]) -> list[Row]:
        """Columns of a file, or of a split of the data set."""
        if self.dataset is not None:
            return read_dataset(self.dataset, source, names)
        return read_rows(source, names)

    def names(self, source: str) -> list[str]:
        """The columns to read, in the order in which `example` takes them."""
        pair = [self.columns.pair] if self.columns.pair is not None else []
        text, label = self.columns.text or self.text_column, self.columns.label or self.label_column
        return [text, *pair, label]

    @abstractmethod
    def example(self, row: Row) -> Example:
        """A record as an example; ValueError if it does not fit the task."""

    @abstractmethod
    def outputs(
        self, model: Any, batch: dict[str, Tensor], labels: Any, features: list[Feature]
    ) -> list[Any]:
        """One output per feature of a batch, whose labels are separate."""

    def scoring_collator(self, tokenizer: Any) -> Callable[[Sequence[Feature]], dict[str, Tensor]]:
        """The function that batches features for scoring, always in the same way."""
        return self.collator(tokenizer)

    def part(self, split: Split, number: int, count: int) -> Split:
        return Split(split.examples, cut(split.features, number, count))

    def joined(self, parts: Sequence[list[Any]]) -> list[Any]:
        return [output for outputs in parts for output in outputs]

    def predict(self, model: Any, split: Split, tokenizer: Any) -> list[Any]:
        collator = self.scoring_collator(tokenizer)
        outputs: list[Any] = []
        with eval_mode(model), torch.inference_mode():
            for features in cut_batches(split.features, token_count, token_budget=TOKEN_BUDGET):
                batch = collator(features)
                batch = {name: value.to(model.device) for name, value in batch.items()}
                labels = batch.pop("labels", None)
                outputs += self.outputs(model, batch, labels, features)
        return outputs


def cut(items: list[Any], number: int, count: int) -> list[Any]:
    """Part `number`, from 0, of a list in `count` parts of nearly equal size."""
    return items[len(items) * number // count : len(items) * (number + 1) // count]


def sequence_length(task: Task, tokenizer: Any, config: Any, max_length: int | None) -> int:
    """The length at which sequences are cut.

    Args:
        task: Has a default.
        tokenizer: Has a limit too.
        config: The model's config.
        max_length: The user's choice; None for the minimum of all limits.

    Raises:
        ValueError: The model has fewer positions, or a pair does not fit.
    """
    limit = longest_sequence(config)
    if max_length is None:
        return min(limit, int(tokenizer.model_max_length), task.default_max_length)
    shortest = tokenizer.num_special_tokens_to_add(pair=True) + 2
    check_length("max_length", max_length, shortest, limit)
    return max_length


def sort_labels(names: set[str]) -> list[str]:
    """Numbers by size, "O" before the tags of entities, otherwise alphabetical."""
    if all(name.isdecimal() for name in names):
        return sorted(names, key=int)
    return sorted(names, key=lambda name: (name != "O", name))


def label_name(row: Row, value: Any) -> str:
    """A label as a name; ValueError if it is missing or empty."""
    name = "" if value is None or isinstance(value, list | dict) else str(value).strip()
    if not name:
        raise InputError(
            f"{row.place} has the label {value!r}. Give a name or a number, or name another label "
            "column."
        )
    return str(int(value) if isinstance(value, bool) else value).strip()


def check_text(row: Row, value: Any) -> str:
    """A text with spaces in place of `<br />` tags; ValueError if it is not a text."""
    if not isinstance(value, str):
        raise InputError(
            f"{row.place} has {str(value)[:40]!r} ({type(value).__name__}) for a text. Name "
            "another text column."
        )
    return without_breaks(value)


def encode(
    tokenizer: Any, texts: list[str], pairs: list[str] | None, max_length: int, **options: Any
) -> list[Feature]:
    """`input_ids` and `token_type_ids` of each text or pair, cut at `max_length` tokens.

    Args:
        tokenizer: The model's tokenizer.
        texts: The texts, or the first texts of pairs.
        pairs: The second texts.
        max_length: Maximum tokens.
        **options: Further arguments of the tokenizer's call.
    """
    # The longer text of a pair is cut first, as BERT's own recipe does.
    options |= {"truncation": True, "max_length": max_length, "return_attention_mask": False}
    encoded = tokenizer(texts, pairs, **options)
    return [
        {"input_ids": ids, "token_type_ids": types}
        for ids, types in zip(*ids_and_types(encoded), strict=True)
    ]
