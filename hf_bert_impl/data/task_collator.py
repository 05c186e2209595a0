"""Batches of tensors from the features of single examples.

A feature is a dict. `input_ids` and `token_type_ids` are lists of numbers, or a list of such lists
for an example of several sequences (the choices of a question). `token_labels` has one label per
token. `labels`, `start_positions` and `end_positions` belong to the whole example. Other keys are
dropped.

Notation: B examples, C choices, S the longest sequence of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from hf_bert_impl.model.losses import IGNORE_INDEX

Feature = dict[str, Any]
#: Keys of the whole example.
WHOLE = ("labels", "start_positions", "end_positions")


def ids_and_types(encoded: Any) -> tuple[list[Any], list[Any]]:
    """Token ids and token types of a tokenizer's output for a list; zeros if it has no types."""
    ids = encoded["input_ids"]
    return ids, encoded.get("token_type_ids") or [[0] * len(row) for row in ids]


def pad(rows: Sequence[Any], fill: int) -> Tensor:
    """(B, S) from rows of whole numbers, filled on the right."""
    tensors = [torch.as_tensor(row, dtype=torch.long) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=fill)


def collate(features: Sequence[Feature], pad_id: int) -> dict[str, Tensor]:
    """Makes a batch of features of one kind, padded to its longest sequence.

    Returns:
        `input_ids`, `attention_mask` and `token_type_ids` (B, S), or (B, C, S) for choices;
        `labels` (B, S) of tokens, or in the shape of the examples' own.
    """
    ids = [feature["input_ids"] for feature in features]
    types = [feature["token_type_ids"] for feature in features]
    choices = 0
    if isinstance(ids[0][0], list):
        choices = len(ids[0])
        ids = [row for several in ids for row in several]
        types = [row for several in types for row in several]
    batch = {
        "input_ids": pad(ids, pad_id),
        "attention_mask": pad([[1] * len(row) for row in ids], 0),
        "token_type_ids": pad(types, 0),
    }
    if choices:
        batch = {name: value.unflatten(0, (-1, choices)) for name, value in batch.items()}
    if "token_labels" in features[0]:
        batch["labels"] = pad([feature["token_labels"] for feature in features], IGNORE_INDEX)
    for name in WHOLE:
        if name in features[0]:
            batch[name] = torch.tensor([feature[name] for feature in features])
    return batch


def token_count(feature: Feature) -> int:
    """The tokens of all sequences of an example."""
    ids = feature["input_ids"]
    return sum(map(len, ids)) if isinstance(ids[0], list) else len(ids)
