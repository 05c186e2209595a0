"""Pre-training batches with new masks, padded to the longest sequence or packed end to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_bert_impl.data.masking import Masker
from hf_bert_impl.data.task_collator import pad
from hf_bert_impl.model.losses import IGNORE_INDEX

Example = Mapping[str, Any]


class PretrainingCollator:
    """Masks examples and makes a batch of them.

    An example has `input_ids` with special tokens, and may have `token_type_ids`,
    `next_sentence_label`, and `sequence_lengths` if it is a pack of several sequences. Its
    `mask_key` (whole numbers) decides its masks together with the seed, whatever the process and
    batch (`epochs.Epochs` makes it of epoch and number). Examples without a key, such as a
    tokenizer's output, are masked by torch's random numbers, which a Trainer seeds.

    Args:
        masker: Chooses and replaces tokens.
        seed: The seed of the masks of examples with a key.
        pad_id: Fills the batch.
        variant: The model's `BertConfig.variant`. codertimo's token types begin at 1, and its label
            1 is a true pair.

    Examples:
        >>> tokenizer = BertTokenizer.from_pretrained("google-bert/bert-base-cased")
        >>> collate = PretrainingCollator(Masker(tokenizer, MaskingOptions("whole-word")))
        >>> batch = collate([tokenizer("A cat naps."), tokenizer("A kitten sleeps.")])
        >>> batch["labels"].shape
        torch.Size([2, 7])
    """

    def __init__(
        self, masker: Masker, *, seed: int = 0, pad_id: int = 0, variant: str = "bert"
    ) -> None:
        self.masker = masker
        self.seed = seed
        self.pad_id = pad_id
        self.is_codertimo = variant == "codertimo"

    def __call__(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """Makes a batch of one or more examples.

        Returns:
            `input_ids`, `labels`, `attention_mask` and, if given, `token_type_ids`, (B, S) each,
            and `next_sentence_label` (B,). Packs give one row (1, T) of each without a mask, and
            `position_ids` that restart at each sequence.
        """
        columns: dict[str, list[np.ndarray]] = {"input_ids": [], "labels": []}
        for example in examples:
            ids = np.asarray(example["input_ids"], dtype=np.int64)
            key = example.get("mask_key")
            if key is None:
                rng = np.random.default_rng(int(torch.randint(2**62, ())))
            else:
                rng = np.random.default_rng([self.seed, *key])
            masked, labels = self.masker.mask(ids, rng)
            columns["input_ids"].append(masked)
            columns["labels"].append(labels)
            if "token_type_ids" in example:
                types = np.asarray(example["token_type_ids"], dtype=np.int64) + self.is_codertimo
                columns.setdefault("token_type_ids", []).append(types)
        if "sequence_lengths" in examples[0]:
            columns["position_ids"] = [
                np.arange(length) for example in examples for length in example["sequence_lengths"]
            ]
            return {
                name: torch.from_numpy(np.concatenate(rows))[None] for name, rows in columns.items()
            }
        fills = {"input_ids": self.pad_id, "labels": IGNORE_INDEX}
        columns["attention_mask"] = [np.ones_like(row) for row in columns["input_ids"]]
        batch = {name: pad(rows, fills.get(name, 0)) for name, rows in columns.items()}
        if "next_sentence_label" in examples[0]:
            is_random = [int(example["next_sentence_label"]) for example in examples]
            batch["next_sentence_label"] = torch.tensor(is_random) ^ self.is_codertimo
        return batch
