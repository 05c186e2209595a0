"""Batches without padding: the sequences end to end in one row, each with its labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_bert_impl.errors import InputError

#: Names of the labels in data sets; the models use the first.
_LABELS = ("labels", "label", "label_ids")
_SPANS = ("start_positions", "end_positions")


class FlatteningCollator:
    """Makes packed input of a tokenizer's output, for a Trainer or a DataLoader.

    Every model of this package except multiple choice computes the same states, logits and loss as
    for a padded batch. Labels belong to tokens (masked words, tags) or to whole sequences (classes,
    numbers, several labels). Question answering has to be padded: its loss is a softmax over a row.

    Examples:
        >>> tokenizer = BertTokenizer.from_pretrained("google-bert/bert-base-cased")
        >>> examples = [tokenizer("A cat naps.") | {"label": 1}, tokenizer("Cats") | {"label": 0}]
        >>> batch = FlatteningCollator()(examples)
        >>> len(batch["input_ids"]), batch["labels"]
        (1, tensor([1, 0]))
    """

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Makes a batch.

        Args:
            features: R examples with `input_ids`, and optionally `token_type_ids`, `attention_mask`
                (tokens with 0 are dropped) and `labels` (or `label`). Labels are a number or a list
                of floats for the sequence, or a list of integers for its tokens.

        Returns:
            `input_ids`, `position_ids` and, if given, `token_type_ids`, (1, T) each, with
            `cu_seq_lens_q` (R + 1,), the borders of the sequences. `labels` are (1, T) for tokens,
            (R,) or (R, L) for sequences.

        Raises:
            InputError: An example is not a single sequence or answers a question, or lengths or
                keys do not match.
        """
        rows: dict[str, list[np.ndarray]] = {}
        for feature in features:
            for name, row in _flat(feature).items():
                rows.setdefault(name, []).append(row)
        if not rows:
            raise InputError("the batch is empty. Give at least one example.")
        for name, column in rows.items():
            if len(column) != len(features):
                raise InputError(
                    f"only some examples of the batch have {name}. Give all examples the same "
                    "keys, and labels of one kind."
                )
        ends = np.cumsum([0, *map(len, rows["input_ids"])], dtype=np.int32)
        labels = rows.pop("sequence labels", None)
        batch = {name: torch.from_numpy(np.concatenate(row))[None] for name, row in rows.items()}
        if labels is not None:
            batch["labels"] = torch.from_numpy(np.stack(labels))
        return batch | {"cu_seq_lens_q": torch.from_numpy(ends)}


def _flat(feature: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The attended tokens of an example, with its labels."""
    for name in _SPANS:
        if name in feature:
            raise InputError(
                f"an example has {name}. Pad question answering (DataCollatorWithPadding): "
                "its loss is one over a row."
            )
    ids = np.asarray(feature["input_ids"], dtype=np.int64)
    if ids.ndim != 1:
        raise InputError(
            f"an example has input_ids of shape {ids.shape}. Give one sequence per example; "
            "multiple choice has to be padded."
        )
    flat = {"input_ids": ids, "position_ids": np.arange(len(ids))}
    attended = np.ones(len(ids), dtype=bool)
    if "attention_mask" in feature:
        attended = _token_row(feature, "attention_mask", ids) != 0
    if "token_type_ids" in feature:
        flat["token_type_ids"] = _token_row(feature, "token_type_ids", ids)
    sequence = {}
    for name in _LABELS:
        if feature.get(name) is None:
            continue
        labels = np.asarray(feature[name])
        if labels.dtype.kind in "fb":
            sequence["sequence labels"] = labels.astype(np.float32)
        elif labels.ndim == 0:
            sequence["sequence labels"] = labels.astype(np.int64)
        else:
            flat["labels"] = _token_row(feature, name, ids)
    return {name: row[attended] for name, row in flat.items()} | sequence


def _token_row(feature: Mapping[str, Any], name: str, ids: np.ndarray) -> np.ndarray:
    row = np.asarray(feature[name], dtype=np.int64)
    if row.shape != ids.shape:
        raise InputError(
            f"an example has {len(ids)} tokens and {name} of shape {row.shape}. Give one per "
            "token; several labels of a whole sequence are floats (1.0)."
        )
    return row
