"""Masked language modelling on one's own texts: predicting masked words.

Notation: M masked tokens of a batch, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hf_bert_impl.data.masking import Masker, MaskingOptions
from hf_bert_impl.data.pretraining_collator import PretrainingCollator
from hf_bert_impl.data.task_collator import Feature
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
    metrics = ("loss", "perplexity", "accuracy")

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

    def features(
        self, examples: Sequence[Example], tokenizer: Any, max_length: int
    ) -> list[Feature]:
        texts = [example.text for example in examples]
        if tokenizer.is_fast:
            cut = encode(tokenizer, texts, None, max_length, return_overflowing_tokens=True)
        else:
            cut = _cut_by_ids(tokenizer, texts, max_length)
        return [feature | {"mask_key": (number,)} for number, feature in enumerate(cut)]

    def scoring_collator(self, tokenizer: Any) -> PretrainingCollator:
        """Masks each feature in the same way each time, so that epochs and models compare."""
        masker = Masker(tokenizer, self.masking)
        return PretrainingCollator(masker, pad_id=tokenizer.pad_token_id)

    def collator(self, tokenizer: Any) -> Callable[[Sequence[Feature]], dict[str, Tensor]]:
        collator = self.scoring_collator(tokenizer)

        def masked(features: Sequence[Feature]) -> dict[str, Tensor]:
            # The Trainer seeds torch's generator and keeps its state in checkpoints.
            collator.seed = int(torch.randint(2**62, ()))
            return collator([row | {"mask_key": (n,)} for n, row in enumerate(features)])

        return masked

    def outputs(
        self, model: Any, batch: dict[str, Tensor], labels: Any, features: list[Feature]
    ) -> list[Any]:
        """For each feature its loss in nats, and how many of its masked tokens are predicted."""
        chosen = labels != IGNORE_INDEX  # (B, S)
        # Logits are as wide as the vocabulary: only for masked tokens.
        states = model.bert(**batch).last_hidden_state[chosen]  # (M, D)
        logits = model._score(model.cls, states).float()  # (M, V)
        check_numbers(logits, model)
        loss = nn.functional.cross_entropy(logits, labels[chosen], reduction="none")
        right = logits.argmax(dim=-1) == labels[chosen]
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
