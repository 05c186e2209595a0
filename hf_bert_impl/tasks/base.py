"""What a task is: how its data are read, what the model gets, and how its answers are judged.

Fine-tuning and evaluation both work on these classes, so that a figure means the same in either.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from hf_bert_impl.data.documents import without_breaks
from hf_bert_impl.data.option_ranges import check_length
from hf_bert_impl.data.task_collator import Collator, Feature, ids_and_types, token_count
from hf_bert_impl.data.task_files import Row, read_dataset, read_rows
from hf_bert_impl.data.token_budget import cut_batches
from hf_bert_impl.errors import InputError
from hf_bert_impl.families.table import longest_sequence
from hf_bert_impl.inference.eval_mode import eval_mode
from hf_bert_impl.tasks.metrics import Metrics

#: Tokens of a batch of predictions. More take more memory and change no result.
TOKEN_BUDGET = 4096


@dataclasses.dataclass(frozen=True)
class Columns:
    """Where a file has what: names of its header, or numbers from 0 where it has none."""

    text: str | None = None
    """The text, or its words; None for the task's own default."""
    pair: str | None = None
    """The second text of a pair; for multiple choice the choices."""
    label: str | None = None
    """What is to be predicted; None for the task's own default."""


@dataclasses.dataclass(frozen=True)
class Example:
    """One labelled record."""

    text: Any
    """A text, or a list of words."""
    pair: Any
    """None, a second text, or a list of choices."""
    label: Any
    """A name, several names, a name a word, or a number; None where nothing is labelled."""
    place: str
    """Where it stands, for messages."""


@dataclasses.dataclass
class Split:
    """Examples and what the model gets of them."""

    examples: list[Any]
    features: list[Feature]


class Task(ABC):
    """A kind of task.

    Args:
        columns: Where its files have what.
        dataset: A `datasets` id that splits are read from in place of files.
    """

    name: ClassVar[str]
    """As in `hf-bert finetune NAME`."""
    head: ClassVar[str]
    """The class of the model."""
    best_metric: str
    """The score by which checkpoints are compared."""
    greater_is_better: ClassVar[bool] = True
    default_max_length: ClassVar[int] = 512
    """Tokens of a sequence; no more than the model takes."""
    min_labels: ClassVar[int] = 0
    """Labels without which there is nothing to learn; 0 for tasks without label names."""

    def __init__(self, columns: Columns | None = None, dataset: str | None = None) -> None:
        self.columns = columns or Columns()
        self.dataset = dataset
        #: The names of the labels, in the order of their numbers.
        self.labels: list[str] = []

    # --- reading ----------------------------------------------------------------------------------

    @abstractmethod
    def read(self, source: str) -> list[Any]:
        """Reads examples.

        Args:
            source: A file, or the name of a split where the task has a data set.

        Raises:
            ValueError: It cannot be read, or a record does not fit the task.
        """

    # --- labels -----------------------------------------------------------------------------------

    def names_in(self, example: Any) -> Sequence[str]:
        """The names of labels in an example."""
        return []

    def learn_labels(self, examples: Sequence[Any], known: Sequence[str]) -> None:
        """Takes the label names of the training examples.

        Args:
            examples: The training examples.
            known: The names that the checkpoint has. If they are the same, their order stays, as
                its head may have been trained on them.

        Raises:
            ValueError: There are too few to learn anything.
        """
        used = {name for example in examples for name in self.names_in(example)}
        if len(used) < self.min_labels:
            raise InputError(
                f"the training examples have {len(used)} label(s) ({', '.join(sorted(used))})",
                f"at least {self.min_labels} for {self.name}",
                "check the label column",
            )
        self.labels = list(known) if set(known) == used else sort_labels(used)

    def check_labels(
        self, examples: Sequence[Any], source: str = "no training example has"
    ) -> None:
        """Checks that every label is one of the task's.

        Args:
            examples: The examples of any split.
            source: What is said of a label that is not.

        Raises:
            ValueError: One is not.
        """
        names = set(self.labels)
        for example in examples:
            unseen = [name for name in self.names_in(example) if name not in names]
            if unseen:
                shown = ", ".join(map(repr, self.labels[:20]))
                raise InputError(
                    f"{example.place} has the label {unseen[0]!r}, which {source}",
                    f"one of {shown}",
                    "mend or leave out the example, or train on some with this label",
                )

    def config(self) -> dict[str, Any]:
        """What the model's config says about the task."""
        return {
            "num_labels": len(self.labels),
            "id2label": dict(enumerate(self.labels)),
            "label2id": {name: number for number, name in enumerate(self.labels)},
        }

    def take_config(self, config: Any, examples: Sequence[Any]) -> None:
        """Takes the label names of a model that is to be evaluated.

        Args:
            config: The model's config.
            examples: What it is to be evaluated on. Where they have numbers and the config only
                has the names that transformers makes up (LABEL_0), numbers are the names.
        """
        names = [config.id2label[number] for number in range(config.num_labels)]
        made_up = names == [f"LABEL_{number}" for number in range(len(names))]
        used = {name for example in examples for name in self.names_in(example)}
        numbers = [str(number) for number in range(len(names))]
        self.labels = numbers if made_up and used <= set(numbers) else names

    # --- the model --------------------------------------------------------------------------------

    @abstractmethod
    def features(self, examples: Sequence[Any], tokenizer: Any, max_length: int) -> list[Feature]:
        """What the model gets, labels among it; longer sequences than `max_length` are cut."""

    def start_head(self, model: Any, train: Split) -> None:
        """Sets weights of a new head that the training data give away."""
        return

    def collator(self, tokenizer: Any) -> Callable[[Sequence[Feature]], dict[str, Tensor]]:
        """What makes batches of features to train on."""
        return Collator(tokenizer.pad_token_id)

    @abstractmethod
    def predict(self, model: Any, split: Split, tokenizer: Any) -> list[Any]:
        """Runs the model on a split.

        Args:
            model: The model; it is in eval mode meanwhile.
            split: Examples with their features.
            tokenizer: The model's tokenizer.

        Returns:
            What `score` and `draw` take.
        """

    @abstractmethod
    def part(self, split: Split, number: int, count: int) -> Split:
        """What one of several processes predicts of a split.

        Args:
            split: The split.
            number: Of the process, from 0.
            count: Of the processes.
        """

    @abstractmethod
    def joined(self, parts: Sequence[list[Any]]) -> list[Any]:
        """The outputs of a split from those of its parts, in their order."""

    # --- judging ----------------------------------------------------------------------------------

    @abstractmethod
    def score(self, split: Split, outputs: list[Any]) -> Metrics:
        """The metrics of a split's outputs."""

    def tune(self, model: Any, split: Split, outputs: list[Any]) -> None:
        """Sets on the validation data what is not learnt by gradients, before the test data."""
        return

    def is_better(self, scores: Mapping[str, float], others: Mapping[str, float]) -> bool:
        """Whether the scores are better than others."""
        one, other = scores[self.best_metric], others[self.best_metric]
        return one > other if self.greater_is_better else one < other

    def draw(self, file: Path, split: Split, outputs: list[Any], title: str) -> bool:
        """Draws the outputs beside the gold labels; returns whether the task has such a picture."""
        return False


class RowTask(Task):
    """A task whose examples are rows of a table, and whose outputs belong to features."""

    text_column: ClassVar[str] = "text"
    label_column: ClassVar[str] = "label"

    def read(self, source: str) -> list[Any]:
        return [self.example(row) for row in self.rows(source, self.wanted(source))]

    def rows(self, source: str, wanted: Sequence[str]) -> list[Row]:
        """The wanted columns of a file, or of a split of the data set."""
        if self.dataset is not None:
            return read_dataset(self.dataset, source, wanted)
        return read_rows(source, wanted)

    def wanted(self, source: str) -> list[str]:
        """The columns to read, in the order in which `example` takes them."""
        pair = [self.columns.pair] if self.columns.pair is not None else []
        return [
            self.columns.text or self.text_column,
            *pair,
            self.columns.label or self.label_column,
        ]

    @abstractmethod
    def example(self, row: Row) -> Example:
        """A record as an example; ValueError where it does not fit the task."""

    @abstractmethod
    def outputs(self, model: Any, batch: dict[str, Tensor], features: list[Feature]) -> list[Any]:
        """Runs the model on a batch without labels: an output a feature."""

    def part(self, split: Split, number: int, count: int) -> Split:
        return Split(split.examples, cut(split.features, number, count))

    def joined(self, parts: Sequence[list[Any]]) -> list[Any]:
        return [output for outputs in parts for output in outputs]

    def predict(self, model: Any, split: Split, tokenizer: Any) -> list[Any]:
        collator = Collator(tokenizer.pad_token_id)
        outputs: list[Any] = []
        with eval_mode(model), torch.inference_mode():
            for features in cut_batches(split.features, token_count, token_budget=TOKEN_BUDGET):
                batch = collator(features)
                batch.pop("labels", None)
                batch = {name: value.to(model.device) for name, value in batch.items()}
                outputs += self.outputs(model, batch, features)
        return outputs


def cut(items: list[Any], number: int, count: int) -> list[Any]:
    """The part of a list with a number, from 0, of so many as equal as can be."""
    return items[len(items) * number // count : len(items) * (number + 1) // count]


def sequence_length(task: Task, tokenizer: Any, config: Any, max_length: int | None) -> int:
    """The length at which sequences are cut.

    Args:
        task: The task, which has a default.
        tokenizer: The model's tokenizer, which may allow less than the model.
        config: The model's config.
        max_length: What the user wants; None for as many tokens as all of them allow.

    Raises:
        ValueError: The model has no positions for so many, or a pair has no room.
    """
    limit = longest_sequence(config)
    if max_length is None:
        return min(limit, int(tokenizer.model_max_length), task.default_max_length)
    shortest = tokenizer.num_special_tokens_to_add(pair=True) + 2
    check_length("max_length", max_length, shortest, limit)
    return max_length


def sort_labels(names: set[str]) -> list[str]:
    """Numbers by size, "O" before the tags of entities, anything else by the alphabet."""
    if all(name.isdecimal() for name in names):
        return sorted(names, key=int)
    return sorted(names, key=lambda name: (name != "O", name))


def label_name(row: Row, value: Any) -> str:
    """A label as a name.

    Raises:
        ValueError: It is missing or empty.
    """
    name = "" if value is None or isinstance(value, list | dict) else str(value).strip()
    if not name:
        raise InputError(
            f"{row.place} has the label {value!r}",
            "a name or a number",
            "mend it, or name another label column",
        )
    return str(int(value) if isinstance(value, bool) else value).strip()


def check_text(row: Row, value: Any) -> str:
    """A text, with spaces in place of the tag `<br />`; ValueError where it is none."""
    if not isinstance(value, str):
        raise InputError(
            f"{row.place} has {str(value)[:40]!r} ({type(value).__name__}) for a text",
            "a string",
            "mend it, or name another text column",
        )
    return without_breaks(value)


def encode(
    tokenizer: Any, texts: list[str], pairs: list[str] | None, max_length: int, **options: Any
) -> list[Feature]:
    """`input_ids` and `token_type_ids` of each text or pair, cut where they are too long.

    Args:
        tokenizer: The model's tokenizer.
        texts: The texts, or the first ones of pairs.
        pairs: The second ones.
        max_length: Tokens at which they are cut.
        **options: Others of the tokenizer's call.
    """
    # The longer text of a pair is cut first, as BERT's own recipe does.
    encoded = tokenizer(
        texts,
        pairs,
        truncation=True,
        max_length=max_length,
        return_attention_mask=False,
        **options,
    )
    return [
        {"input_ids": ids, "token_type_ids": types}
        for ids, types in zip(*ids_and_types(encoded), strict=True)
    ]
