"""Masked language modelling on one's own texts: predicting masked words.

Notation: M masked tokens of a batch, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hf_bert_impl.data.masking import Masker, MaskingOptions
from hf_bert_impl.data.task_collator import Collator, Feature
from hf_bert_impl.data.task_files import Row, read_rows
from hf_bert_impl.data.text_input import form_of
from hf_bert_impl.finite import check_numbers
from hf_bert_impl.model.losses import IGNORE_INDEX
from hf_bert_impl.tasks.base import Columns, Example, RowTask, Split, check_text, encode
from hf_bert_impl.tasks.metrics import Metrics, perplexity


class MaskedLanguageModeling(RowTask):
    """Texts without labels; long ones are cut into several sequences without loss.

    Args:
        columns: The text column of tables; other files are one text per line.
        dataset: As in `Task`.
        masking: "token" or "whole-word".
    """

    name = "masked-lm"
    head = "BertForMaskedLM"
    best_metric = "loss"
    greater_is_better = False

    def __init__(
        self, columns: Columns | None = None, dataset: str | None = None, masking: str = "token"
    ) -> None:
        super().__init__(columns, dataset)
        self.masking = MaskingOptions(unit=masking)

    def names(self, source: str) -> list[str]:
        return [self.columns.text or self.text_column]

    def rows(self, source: str, names: Sequence[str]) -> list[Row]:
        if self.dataset is None and self.columns.text is None and form_of(source) == "lines":
            return read_rows(source, None)
        return super().rows(source, names)

    def example(self, row: Row) -> Example:
        return Example(check_text(row, row.values[0]), None, None, row.place)

    def config(self) -> dict[str, Any]:
        return {}

    def features(
        self, examples: Sequence[Example], tokenizer: Any, max_length: int
    ) -> list[Feature]:
        texts = [example.text for example in examples]
        if tokenizer.is_fast:
            cut = encode(tokenizer, texts, None, max_length, return_overflowing_tokens=True)
        else:
            cut = _cut_by_ids(tokenizer, texts, max_length)
        return [feature | {"number": number} for number, feature in enumerate(cut)]

    def collator(self, tokenizer: Any) -> Callable[[Sequence[Feature]], dict[str, Tensor]]:
        masker, collator = Masker(tokenizer, self.masking), Collator(tokenizer.pad_token_id)

        def masked(features: Sequence[Feature]) -> dict[str, Tensor]:
            # The Trainer seeds torch's generator and keeps its state in checkpoints.
            seed = int(torch.randint(2**62, ()))
            keys = [(seed, number) for number in range(len(features))]
            return collator(_mask(masker, features, keys))

        return masked

    def predict(self, model: Any, split: Split, tokenizer: Any) -> list[Any]:
        # The same masks each time, so that epochs and models can be compared.
        keys = [(0, feature["number"]) for feature in split.features]
        masked = _mask(Masker(tokenizer, self.masking), split.features, keys)
        return super().predict(model, Split(split.examples, masked), tokenizer)

    def outputs(self, model: Any, batch: dict[str, Tensor], features: list[Feature]) -> list[Any]:
        """For each feature its loss in nats, and how many of its masked tokens are predicted."""
        labels = [label for feature in features for label in feature["token_labels"]]
        real = batch["attention_mask"].bool()
        gold = torch.full_like(batch["input_ids"], IGNORE_INDEX)
        gold[real] = torch.tensor(labels, device=gold.device)
        chosen = gold != IGNORE_INDEX  # (B, S)
        # Logits are as wide as the vocabulary: only for masked tokens.
        logits = model.cls(model.bert(**batch).last_hidden_state[chosen]).float()  # (M, V)
        check_numbers(logits, model)
        loss = nn.functional.cross_entropy(logits, gold[chosen], reduction="none")
        right = logits.argmax(dim=-1) == gold[chosen]
        sizes = chosen.sum(dim=1).tolist()
        return [
            (float(part.sum()), int(hits.sum()), len(part))
            for part, hits in zip(loss.split(sizes), right.split(sizes), strict=True)
        ]

    def score(self, split: Split, outputs: list[Any]) -> Metrics:
        loss, right, count = (sum(column) for column in zip(*outputs, strict=True))
        return {
            "loss": loss / max(count, 1),
            "perplexity": perplexity(loss, count),
            "accuracy": right / max(count, 1),
        }


def _cut_by_ids(tokenizer: Any, texts: list[str], max_length: int) -> list[Feature]:
    """All pieces of all texts, by a tokenizer that drops all but the first."""
    size = max_length - tokenizer.num_special_tokens_to_add()
    encoded = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    pieces = [
        tokenizer.prepare_for_model(ids[start : start + size], return_token_type_ids=True)
        for ids in encoded
        for start in range(0, max(1, len(ids)), size)
    ]
    return [{name: piece[name] for name in ("input_ids", "token_type_ids")} for piece in pieces]


def _mask(
    masker: Masker, features: Sequence[Feature], keys: Sequence[tuple[int, int]]
) -> list[Feature]:
    masked = []
    for feature, key in zip(features, keys, strict=True):
        rng = np.random.default_rng(key)
        ids, labels = masker.mask(np.asarray(feature["input_ids"]), rng)
        masked.append(feature | {"input_ids": ids.tolist(), "token_labels": labels.tolist()})
    return masked
