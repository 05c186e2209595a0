"""Classes of texts and pairs, without padding.

Notation: N texts, L labels.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hf_bert_impl.data.token_budget import TOKEN_BUDGET, cut_batches
from hf_bert_impl.encoders.lengths import longest_sequence
from hf_bert_impl.errors import InputError
from hf_bert_impl.finite import check_numbers
from hf_bert_impl.inference.batching import check_text, padded_inputs


class TextClassifier:
    """Computes the logits of a sequence classifier of any family, in batches of tokens.

    Args:
        model: A model for sequence classification, best after `optimize`, which skips the padding.
            It is set to eval mode.
        tokenizer: Its tokenizer.
        token_budget: Maximum number of tokens per batch; a longer text is its own batch.

    Raises:
        InputError: The model has one label, which every text would get.
    """

    def __init__(self, model: Any, tokenizer: Any, token_budget: int | None = None) -> None:
        if model.config.num_labels == 1:
            name = model.config.name_or_path or type(model).__name__
            raise InputError(
                f"{name} has one label, which every text would get. It gives scores: use "
                "sentence_transformers.CrossEncoder, or `hf-bert serve` with its /rerank."
            )
        self.model, self.tokenizer = model.eval(), tokenizer
        self.token_budget = token_budget or TOKEN_BUDGET
        #: Maximum number of tokens; the longer text of a pair is truncated first.
        self.max_length = min(longest_sequence(model.config), int(tokenizer.model_max_length))
        #: Number of tokens computed so far.
        self.tokens = 0
        self._names = inspect.signature(model.forward).parameters.keys()

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
        rows = self._tokenize(texts, pairs)
        lengths = [len(row["input_ids"]) for row in rows]
        order = sorted(range(len(rows)), key=lambda place: -lengths[place])
        logits = np.empty((len(rows), self.model.config.num_labels), np.float32)
        for batch in cut_batches(order, lengths.__getitem__, token_budget=self.token_budget):
            logits[batch] = self._compute([rows[place] for place in batch])
        self.tokens += sum(lengths)
        return logits

    def _tokenize(
        self, texts: Sequence[str], pairs: Sequence[str] | None
    ) -> list[dict[str, list[int]]]:
        """The features of each text or pair."""
        for column in (texts, pairs or ()):
            for index, text in enumerate(column):
                check_text(index, text)
        if pairs is not None and len(pairs) != len(texts):
            raise InputError(
                f"There are {len(texts)} texts, but {len(pairs)} pairs. Pair each text."
            )
        if not texts:
            return []
        encoded = self.tokenizer(
            list(texts),
            None if pairs is None else list(pairs),
            truncation="longest_first",
            max_length=self.max_length,
            return_attention_mask=False,
        )
        names = [name for name in encoded if name in self._names]
        columns = zip(*(encoded[name] for name in names), strict=True)
        return [dict(zip(names, row, strict=True)) for row in columns]

    @torch.inference_mode()
    def _compute(self, rows: list[dict[str, list[int]]]) -> np.ndarray:
        """(n, L) float32 logits of a batch."""
        inputs = padded_inputs(rows, self.tokenizer, self.model.device)
        logits: np.ndarray = self.model(**inputs, return_dict=True).logits.float().cpu().numpy()
        check_numbers(logits, self.model)
        return logits

    def probabilities(self, logits: np.ndarray, function: str | None = None) -> np.ndarray:
        """Converts logits (N, L) into probabilities.

        Args:
            logits: From `logits`.
            function: "softmax", "sigmoid" or "none". None takes "none" for a regression, "sigmoid"
                if `problem_type` is "multi_label_classification", otherwise "softmax".
        """
        if function is None:
            kinds = {"regression": "none", "multi_label_classification": "sigmoid"}
            function = kinds.get(self.model.config.problem_type, "softmax")
        if function == "none":
            return logits
        scores = torch.from_numpy(logits).double()
        scores = scores.sigmoid() if function == "sigmoid" else scores.softmax(dim=-1)
        return scores.float().numpy()
