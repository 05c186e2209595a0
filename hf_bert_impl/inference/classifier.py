"""Classes and scores of texts and pairs, without padding.

Notation: N texts, L labels.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hf_bert_impl.data.task_collator import ids_and_types
from hf_bert_impl.data.token_budget import TOKEN_BUDGET, cut_batches
from hf_bert_impl.errors import InputError
from hf_bert_impl.families.table import longest_sequence
from hf_bert_impl.finite import check_numbers
from hf_bert_impl.inference.batching import check_text, packed_inputs
from hf_bert_impl.inference.joined_calls import JoinedCalls


@dataclasses.dataclass(frozen=True)
class _Row:
    """The tokens of a text or pair."""

    ids: list[int]
    types: list[int]

    def __len__(self) -> int:
        return len(self.ids)


class TextClassifier:
    """Computes the logits of a sequence classifier.

    Args:
        model: A BertForSequenceClassification, or another family's after `optimize`. It is set to
            eval mode.
        tokenizer: Its tokenizer.
        token_budget: Maximum number of tokens per batch; a longer text is a batch of its own.
    """

    def __init__(self, model: Any, tokenizer: Any, token_budget: int | None = None) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer
        self.token_budget = token_budget or TOKEN_BUDGET
        limit = longest_sequence(model.config)
        #: Maximum number of tokens; the longer text of a pair is truncated first.
        self.max_length = min(limit, int(tokenizer.model_max_length))
        #: Number of tokens computed so far.
        self.tokens = 0
        self._joined = JoinedCalls(self._tokenize, self._compute, self.token_budget)

    @property
    def labels(self) -> list[str]:
        """The names of the L labels."""
        names = self.model.config.id2label
        return [str(names[number]) for number in sorted(names)]

    def logits(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> np.ndarray:
        """Scores texts.

        Args:
            texts: N texts.
            pairs: N second texts, for a model of pairs.

        Returns:
            (N, L) float32.

        Raises:
            TypeError: An entry is not a str.
            InputError: `texts` and `pairs` differ in length.
            ValueError: A logit is NaN or infinite.
        """
        rows = self._tokenize(self._items(texts, pairs))
        batches = cut_batches(rows, len, token_budget=self.token_budget)
        none = np.empty((0, self.model.config.num_labels), np.float32)
        logits = np.concatenate([none, *map(self._compute, batches)])
        check_numbers(logits, self.model)
        return logits

    async def logits_async(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None
    ) -> tuple[np.ndarray, int]:
        """Scores one text or more without blocking the event loop; see `TextEncoder.encode_async`.

        Arguments and errors are as in `logits`.

        Returns:
            (N, L) float32, and the number of tokens.
        """
        logits, tokens = await self._joined.run(self._items(texts, pairs), 0, np.stack)
        check_numbers(logits, self.model)
        return logits, tokens

    def _items(
        self, texts: Sequence[str], pairs: Sequence[str] | None
    ) -> list[str] | list[tuple[str, str]]:
        for column in (texts, pairs or ()):
            for index, text in enumerate(column):
                check_text(index, text)
        if pairs is None:
            return list(texts)
        if len(pairs) != len(texts):
            raise InputError(
                f"There are {len(texts)} texts, but {len(pairs)} pairs. Pair each text."
            )
        return list(zip(texts, pairs, strict=True))

    def _tokenize(self, items: list[Any]) -> list[_Row]:
        if not items:
            return []
        encoded = self.tokenizer(
            items,
            truncation="longest_first",
            max_length=self.max_length,
            return_attention_mask=False,
        )
        return [_Row(ids, types) for ids, types in zip(*ids_and_types(encoded), strict=True)]

    @torch.inference_mode()
    def _compute(self, rows: list[_Row], kind: int = 0) -> np.ndarray:
        """(n, L) float32 logits of a batch."""
        inputs = packed_inputs(
            [row.ids for row in rows], [row.types for row in rows], self.model.device
        )
        self.tokens += inputs["input_ids"].shape[1]
        return self.model(**inputs, return_dict=True).logits.float().cpu().numpy()

    def probabilities(self, logits: np.ndarray, function: str | None = None) -> np.ndarray:
        """Converts logits (N, L) into probabilities.

        Args:
            logits: From `logits`.
            function: "softmax", "sigmoid" or "none". None takes "none" for a regression, "sigmoid"
                if there is one label or `problem_type` is "multi_label_classification", otherwise
                "softmax".
        """
        if function is None:
            kind = self.model.config.problem_type
            is_each = kind == "multi_label_classification" or logits.shape[1] == 1
            function = "none" if kind == "regression" else "sigmoid" if is_each else "softmax"
        if function == "none":
            return logits
        scores = torch.from_numpy(logits).double()
        scores = scores.sigmoid() if function == "sigmoid" else scores.softmax(dim=-1)
        return scores.float().numpy()
