"""Batches for pre-training, and what the model makes of them."""

import numpy as np
import pytest
import torch

from hf_bert_impl.data.masking import Masker
from hf_bert_impl.data.pretraining_collator import PretrainingCollator

LENGTHS = (9, 4, 13)


@pytest.fixture
def tokenizer(tokenizer_of):
    return tokenizer_of(f"w{n}" for n in range(37))


@pytest.fixture
def collate(tokenizer):
    return PretrainingCollator(Masker(tokenizer), seed=3, pad_id=0)


@pytest.fixture
def examples():
    rng = np.random.default_rng(0)
    return [
        {
            "input_ids": [2, *rng.integers(5, 42, length - 2).tolist(), 3],
            "token_type_ids": [0, *[1] * (length - 1)],
            "next_sentence_label": number % 2,
            "mask_key": (0, number),
        }
        for number, length in enumerate(LENGTHS)
    ]


def test_padded(tokenizer, collate, examples):
    batch = collate(examples)
    assert all(len(tensor) == 3 and tensor.shape[1:] in ((), (13,)) for tensor in batch.values())
    assert all(tensor.dtype == torch.int64 for tensor in batch.values())
    assert batch["next_sentence_label"].tolist() == [0, 1, 0]
    real, labels = batch["attention_mask"], batch["labels"]
    assert real.sum(dim=1).tolist() == list(LENGTHS)
    for name, fill in (("input_ids", 0), ("labels", -100), ("token_type_ids", 0)):
        assert (batch[name][real == 0] == fill).all()
    assert (labels != -100).any(dim=1).all()
    kept = torch.where(labels == -100, batch["input_ids"], labels)
    for row, example in zip(kept.tolist(), examples, strict=True):
        assert row[: len(example["input_ids"])] == example["input_ids"]
    # In codertimo's BERT types begin at 1, padding has 0, and label 1 is a pair that follows.
    ours = PretrainingCollator(Masker(tokenizer), seed=3, variant="codertimo")(examples)
    assert torch.equal(ours["token_type_ids"], (batch["token_type_ids"] + 1) * real)
    assert torch.equal(ours["next_sentence_label"], 1 - batch["next_sentence_label"])
    for name in ("input_ids", "labels", "attention_mask"):
        assert torch.equal(ours[name], batch[name])


def test_masks_are_of_the_example_the_epoch_and_the_seed(tokenizer, collate, examples):
    together = collate(examples)
    alone = collate(examples[1:2])
    assert torch.equal(together["input_ids"][1, :4], alone["input_ids"][0])
    last = examples[2]
    epochs = [collate([last | {"mask_key": (epoch, 2)}])["labels"] for epoch in range(9)]
    assert len({tuple(labels[0].tolist()) for labels in epochs}) > 4
    other = PretrainingCollator(Masker(tokenizer), seed=4, pad_id=0)
    assert not torch.equal(other([last])["labels"], collate([last])["labels"])


def test_packed(collate, examples):
    ids = [example["input_ids"] for example in examples]
    packs = [
        {"input_ids": ids[0] + ids[1], "sequence_lengths": [9, 4], "mask_key": (0, 0)},
        {"input_ids": ids[2], "sequence_lengths": [13], "mask_key": (0, 1)},
    ]
    batch = collate(packs)
    assert set(batch) == {"input_ids", "labels", "position_ids"}
    assert batch["position_ids"].tolist() == [[*range(9), *range(4), *range(13)]]
    labels = batch["labels"][0]
    kept = torch.where(labels == -100, batch["input_ids"][0], labels)
    assert kept.tolist() == ids[0] + ids[1] + ids[2]
