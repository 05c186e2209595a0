"""Tagging: one label per word, predicted at the word's first piece (Devlin et al. 2019, 5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_bert_impl.data.task_collator import Feature
from hf_bert_impl.data.task_files import Row
from hf_bert_impl.data.text_input import form_of
from hf_bert_impl.errors import InputError, check_offsets
from hf_bert_impl.finite import check_numbers
from hf_bert_impl.model.losses import IGNORE_INDEX
from hf_bert_impl.tasks import metrics, pictures
from hf_bert_impl.tasks.base import Example, RowTask, Split, label_name
from hf_bert_impl.tasks.metrics import Metrics


class TokenClassification(RowTask):
    """A tag per word: CoNLL files, or columns of words and tags (lists, or texts with blanks)."""

    name = "token-classification"
    head = "BertForTokenClassification"
    best_metric = "f1"
    metrics = ("f1", "precision", "recall", "accuracy")
    min_labels = 2
    text_column = "tokens"
    label_column = "tags"

    def names(self, source: str) -> list[str]:
        conll = self.dataset is None and form_of(source) == "conll"
        # In CoNLL the word is first and the tag last.
        return [
            self.columns.text or ("0" if conll else self.text_column),
            self.columns.label or ("-1" if conll else self.label_column),
        ]

    def example(self, row: Row) -> Example:
        words, tags = (
            value.split(" ") if isinstance(value, str) else value for value in row.values
        )
        if not isinstance(words, list) or not isinstance(tags, list) or len(words) != len(tags):
            sizes = [len(value) if isinstance(value, list) else 0 for value in (words, tags)]
            raise InputError(
                f"{row.place} has {sizes[0]} words and {sizes[1]} tags. Give one tag per word, as "
                "lists or as texts with blanks."
            )
        if not words:
            raise InputError(f"{row.place} has no words. Leave it out.")
        tags = [label_name(row, tag) for tag in tags]
        return Example([str(word) for word in words], None, tags, row.place)

    def names_in(self, example: Example) -> Sequence[str]:
        return example.label

    def features(
        self, examples: Sequence[Example], tokenizer: Any, max_length: int
    ) -> list[Feature]:
        check_offsets(tokenizer)
        encoded = tokenizer(
            [example.text for example in examples],
            is_split_into_words=True,
            truncation=True,
            max_length=max_length,
            return_attention_mask=False,
            return_token_type_ids=True,
        )
        number = {name: index for index, name in enumerate(self.labels)}
        features = []
        for index, example in enumerate(examples):
            firsts: dict[int, int] = {}  # word to the position of its first piece
            for position, word in enumerate(encoded.word_ids(index)):
                if word is not None:
                    firsts.setdefault(word, position)
            labels = [IGNORE_INDEX] * len(encoded["input_ids"][index])
            for word, position in firsts.items():
                labels[position] = number[example.label[word]]
            features.append(
                {
                    "input_ids": encoded["input_ids"][index],
                    "token_type_ids": encoded["token_type_ids"][index],
                    "token_labels": labels,
                    "first_pieces": firsts,
                }
            )
        return features

    def outputs(
        self, model: Any, batch: dict[str, Tensor], labels: Any, features: list[Feature]
    ) -> list[Any]:
        logits = model(**batch, return_dict=True).logits
        check_numbers(logits, model)
        best = logits.argmax(dim=-1).cpu().numpy()  # (B, S)
        return [
            {word: int(row[position]) for word, position in feature["first_pieces"].items()}
            for row, feature in zip(best, features, strict=True)
        ]

    def tags(self, split: Split, outputs: list[dict[int, int]]) -> list[list[str]]:
        """The predicted tags of all words.

        Words that the tokenizer drops (control characters) or that are beyond the maximum length
        are outside entities.
        """
        outside = self.labels.index("O") if "O" in self.labels else 0
        return [
            [self.labels[predicted.get(word, outside)] for word in range(len(example.label))]
            for example, predicted in zip(split.examples, outputs, strict=True)
        ]

    def score(self, split: Split, outputs: list[Any]) -> Metrics:
        gold = [example.label for example in split.examples]
        return metrics.entity_metrics(gold, self.tags(split, outputs))

    def draw(self, file: Path, split: Split, outputs: list[Any], title: str) -> bool:
        gold, predicted = (
            [self.labels.index(tag) for tags in sentences for tag in tags]
            for sentences in ([e.label for e in split.examples], self.tags(split, outputs))
        )
        pictures.draw_confusion_matrix(file, title, gold, predicted, self.labels)
        return True
