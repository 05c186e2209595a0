"""Batches without padding: the sequences of a batch end to end in one row, each with its labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_bert_impl.errors import InputError

#: What datasets call the answer; the models call it `labels`.
_LABELS = ("labels", "label", "label_ids")
_SPANS = ("start_positions", "end_positions")


class FlatteningCollator:
    """Makes packed input of what a tokenizer gives, for a Trainer or a DataLoader.

    Every model of this package but the one for multiple choice takes it and computes what it
    computes of a padded batch: the same states, logits and loss. Labels are those of tokens (masked
    words, tags) or of whole sequences (classes, numbers, several labels). Question answering has to
    be padded: its loss is a softmax over the row.

    Examples:
        >>> tokenizer = BertTokenizer.from_pretrained("google-bert/bert-base-cased")
        >>> examples = [tokenizer("A cat naps.") | {"label": 1}, tokenizer("Cats") | {"label": 0}]
        >>> batch = FlatteningCollator()(examples)
        >>> len(batch["input_ids"]), batch["labels"]
        (1, tensor([1, 0]))
    """

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """The batch.

        Args:
            features: R examples. Each has `input_ids`, and may have `token_type_ids`, an
                `attention_mask`, whose zeros are left out, and `labels` (or `label`): one number,
                or a list of numbers with a fraction, for the sequence; a list of whole numbers for
                its tokens.

        Returns:
            `input_ids`, `position_ids` and, where the examples have them, `token_type_ids`, (1, T)
            each; `cu_seq_lens_q` (R + 1,), where each sequence begins, and where the last one ends;
            `labels` (1, T) of tokens, or (R,) or (R, L) of sequences.

        Raises:
            InputError: An example is no single sequence, has no tokens, or has labels that are not
                as many as its tokens or that its neighbours lack; or answers are given as places.
        """
        rows: dict[str, list[np.ndarray]] = {}
        names = [{_LABELS[0] if name in _LABELS else name for name in it} for it in features]
        for number, feature in enumerate(features):
            for name in ("token_type_ids", *_LABELS[:1]):
                if (name in names[number]) != (name in names[0]):
                    raise InputError(
                        f"only some examples of the batch have {name}",
                        "all of them or none",
                        f"add or remove {name}",
                    )
            for name, row in _flat(feature).items():
                rows.setdefault(name, []).append(row)
        if not rows:
            raise InputError("the batch is empty", "one example or more", "give some")
        ends = np.cumsum([0, *map(len, rows["input_ids"])], dtype=np.int32)
        whole = rows.pop("sequence_labels", None)
        batch = {name: torch.from_numpy(np.concatenate(it))[None] for name, it in rows.items()}
        if whole is not None:
            shapes = {row.shape for row in whole}
            if len(shapes) > 1 or "labels" in batch:
                raise InputError(
                    "the examples of a batch have labels of several kinds",
                    "one label a sequence, or as many of each sequence, or one a token",
                    "mend the labels of the data",
                )
            batch["labels"] = torch.from_numpy(np.stack(whole))
        return batch | {"cu_seq_lens_q": torch.from_numpy(ends)}


def _flat(feature: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The tokens of an example that its mask attends to; its labels as those of tokens or not."""
    for name in _SPANS:
        if name in feature:
            raise InputError(
                f"an example has {name}",
                "labels of tokens or of whole sequences",
                "pad question answering (DataCollatorWithPadding): its loss is one over a row",
            )
    ids = _row(feature, "input_ids")
    if ids.ndim != 1:
        raise InputError(
            f"an example has input_ids of shape {ids.shape}",
            "a list of numbers",
            "give one sequence an example; multiple choice has to be padded",
        )
    attended = np.ones(len(ids), dtype=bool)
    if "attention_mask" in feature:
        attended = _token_row(feature, "attention_mask", ids) != 0
    if not attended.any():
        raise InputError("an example has no tokens", "one or more", "leave it out")
    flat = {"input_ids": ids, "position_ids": np.arange(len(ids))}
    if "token_type_ids" in feature:
        flat["token_type_ids"] = _token_row(feature, "token_type_ids", ids)
    whole = {}
    for name in (name for name in _LABELS if feature.get(name) is not None):
        labels = np.asarray(feature[name])
        if labels.dtype.kind in "fb":
            whole["sequence_labels"] = labels.astype(np.float32)
        elif labels.ndim == 0:
            whole["sequence_labels"] = _row(feature, name)
        else:
            flat["labels"] = _token_row(feature, name, ids)
    return {name: row[attended] for name, row in flat.items()} | whole


def _row(feature: Mapping[str, Any], name: str) -> np.ndarray:
    try:
        return np.asarray(feature[name], dtype=np.int64)
    except KeyError as error:
        raise InputError(f"an example has no {name}", "what a tokenizer gives", "add it") from error
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name} of an example are {feature[name]!r:.60}", "whole numbers", "mend the data"
        ) from error


def _token_row(feature: Mapping[str, Any], name: str, ids: np.ndarray) -> np.ndarray:
    row = _row(feature, name)
    if row.shape != ids.shape:
        raise InputError(
            f"an example has {len(ids)} tokens and {name} of shape {row.shape}",
            "one for each token",
            "mend the data; several labels of a whole sequence are numbers with a fraction (1.0)",
        )
    return row
