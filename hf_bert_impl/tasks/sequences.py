"""Tasks on a whole text or pair: classes, several labels, numbers, choices.

Notation: N examples, L labels, C choices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from hf_bert_impl.data.task_collator import Feature
from hf_bert_impl.data.task_files import Row
from hf_bert_impl.errors import InputError
from hf_bert_impl.finite import check_numbers
from hf_bert_impl.tasks import metrics, pictures
from hf_bert_impl.tasks.base import (
    Columns,
    Example,
    RowTask,
    Split,
    check_text,
    encode,
    label_name,
)
from hf_bert_impl.tasks.metrics import Metrics

#: Larger labels could exceed the range of float32 in squared errors and gradients.
LARGEST_LABEL = 1_000_000_000


class _SequenceTask(RowTask):
    """A text or a pair as input, a row of logits as output."""

    head = "BertForSequenceClassification"

    def example(self, row: Row) -> Example:
        text, *pair, label = row.values
        return Example(
            check_text(row, text),
            check_text(row, pair[0]) if pair else None,
            self.label(row, label),
            row.place,
        )

    def label(self, row: Row, value: Any) -> Any:
        """The label of a record."""
        return label_name(row, value)

    def number(self, label: Any) -> Any:
        """A label in the form of the model's loss."""
        return self.labels.index(label)

    def features(
        self, examples: Sequence[Example], tokenizer: Any, max_length: int
    ) -> list[Feature]:
        pairs = [example.pair for example in examples]
        features = encode(
            tokenizer,
            [example.text for example in examples],
            None if pairs[0] is None else pairs,
            max_length,
        )
        for feature, example in zip(features, examples, strict=True):
            feature["labels"] = self.number(example.label)
        return features

    def outputs(
        self, model: Any, batch: dict[str, Tensor], labels: Any, features: list[Feature]
    ) -> list[Any]:
        logits = model(**batch, return_dict=True).logits
        check_numbers(logits, model)
        return list(logits.float().cpu().numpy())

    def gold(self, split: Split) -> np.ndarray:
        """The labels of all examples in the form of the loss."""
        return np.array([feature["labels"] for feature in split.features])


class Classification(_SequenceTask):
    """One class per text or pair."""

    name = "classification"
    best_metric = "accuracy"
    metrics = ("accuracy", "f1", "macro_f1", "matthews_correlation")
    min_labels = 2

    def names_in(self, example: Example) -> Sequence[str]:
        return [example.label]

    def config(self) -> dict[str, Any]:
        return super().config() | {"problem_type": "single_label_classification"}

    def score(self, split: Split, outputs: list[Any]) -> Metrics:
        predicted = np.argmax(outputs, axis=1)
        return metrics.classification_metrics(self.gold(split), predicted, len(self.labels))

    def draw(self, file: Path, split: Split, outputs: list[Any], title: str) -> bool:
        predicted = np.argmax(outputs, axis=1)
        pictures.draw_confusion_matrix(file, title, self.gold(split), predicted, self.labels)
        return True


class MultiLabelClassification(_SequenceTask):
    """Any number of labels per text or pair: a list in JSON, names with commas in tables."""

    name = "classification"
    best_metric = "f1"
    metrics = ("accuracy", "f1", "macro_f1")
    min_labels = 1

    def label(self, row: Row, value: Any) -> list[str]:
        if isinstance(value, str):
            value = [name for name in value.split(",") if name.strip()]
        if not isinstance(value, list):
            raise InputError(
                f"{row.place} has the label {value!r}. Give a list of names, or names with commas "
                "between them."
            )
        return [label_name(row, name) for name in value]

    def names_in(self, example: Example) -> Sequence[str]:
        return example.label

    def number(self, label: Any) -> list[float]:
        return [float(name in label) for name in self.labels]

    def config(self) -> dict[str, Any]:
        return super().config() | {"problem_type": "multi_label_classification"}

    def score(self, split: Split, outputs: list[Any]) -> Metrics:
        # A logit above 0 is a probability above one half.
        return metrics.multilabel_metrics(self.gold(split), np.array(outputs) > 0)


class Regression(_SequenceTask):
    """A number per text or pair, such as the similarity of two sentences."""

    name = "regression"
    best_metric = "pearson"
    metrics = ("pearson", "spearman", "mse")

    def label(self, row: Row, value: Any) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not abs(number) <= LARGEST_LABEL:  # NaN is not
            raise InputError(
                f"{row.place} has the label {value!r}. Give a number from {-LARGEST_LABEL:,} to "
                f"{LARGEST_LABEL:,}, or name another label column."
            )
        return number

    def number(self, label: Any) -> float:
        return float(label)

    def config(self) -> dict[str, Any]:
        names = {"id2label": {0: "score"}, "label2id": {"score": 0}}
        return {"num_labels": 1, "problem_type": "regression"} | names

    def take_config(self, config: Any, examples: Sequence[Example]) -> None:
        if config.num_labels != 1:
            raise InputError(
                f"the model has {config.num_labels} labels, and regression needs one. Name a model "
                "that was fine-tuned for it."
            )

    def start_head(self, model: Any, train: Split) -> None:
        # Starting at 0 would spend much of the training on the mean.
        nn.init.constant_(model.classifier.bias, float(self.gold(train).mean()))

    def score(self, split: Split, outputs: list[Any]) -> Metrics:
        return metrics.regression_metrics(self.gold(split), np.array(outputs)[:, 0])

    def draw(self, file: Path, split: Split, outputs: list[Any], title: str) -> bool:
        pictures.draw_scatter(file, title, self.gold(split), np.array(outputs)[:, 0])
        return True


class MultipleChoice(_SequenceTask):
    """The number, from 0, of the right continuation of a text.

    The choices are columns with commas between their names, or one column of lists.
    """

    name = "multiple-choice"
    head = "BertForMultipleChoice"
    best_metric = "accuracy"
    metrics = ("accuracy",)

    def __init__(self, columns: Columns | None = None, dataset: str | None = None) -> None:
        super().__init__(columns, dataset)
        if self.columns.pair is None:
            raise InputError(
                "multiple choice has no columns of choices. Name them as the text-pair column, "
                "with commas between, or one column with lists."
            )

    def names(self, source: str) -> list[str]:
        text, pair, label = super().names(source)
        return [text, *pair.split(","), label]

    def example(self, row: Row) -> Example:
        text, *choices, label = row.values
        if len(choices) == 1 and isinstance(choices[0], list):
            choices = choices[0]
        choices = [check_text(row, choice) for choice in choices]
        number = int(label) if str(label).strip().isdecimal() else -1
        if not 0 <= number < len(choices) or len(choices) < 2:
            raise InputError(
                f"{row.place} has {len(choices)} choice(s) and the label {label!r}. Give at least "
                "2 and the number of the right one, from 0."
            )
        return Example(check_text(row, text), choices, number, row.place)

    def features(
        self, examples: Sequence[Example], tokenizer: Any, max_length: int
    ) -> list[Feature]:
        count = len(examples[0].pair)
        other = next((example for example in examples if len(example.pair) != count), None)
        if other is not None:
            raise InputError(
                f"{other.place} has {len(other.pair)} choices, and {examples[0].place} {count}. "
                "Give every question as many."
            )
        rows = encode(
            tokenizer,
            [example.text for example in examples for _ in range(count)],
            [choice for example in examples for choice in example.pair],
            max_length,
        )
        features: list[Feature] = []
        for example, choices in zip(examples, zip(*[iter(rows)] * count, strict=True), strict=True):
            columns = {name: [row[name] for row in choices] for name in choices[0]}
            features.append(columns | {"labels": example.label})
        return features

    def score(self, split: Split, outputs: list[Any]) -> Metrics:
        return {"accuracy": float(np.mean(self.gold(split) == np.argmax(outputs, axis=1)))}
