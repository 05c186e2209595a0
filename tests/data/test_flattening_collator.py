"""Packed batches: what is in them. tests/model compares their losses with those of padded ones."""

import pytest
import torch

from hf_bert_impl.data import FlatteningCollator

#: By kind: the labels of two examples, and those of the batch.
LABELS = {
    "classes": ([2, 0], torch.tensor([2, 0])),
    "numbers": ([0.5, 1.0], torch.tensor([0.5, 1.0])),
    "several": ([[1.0, 0.0], [0.0, 1.0]], torch.tensor([[1.0, 0.0], [0.0, 1.0]])),
    "tokens": ([[-100, 7, 9, 9], [3, -100, 8]], torch.tensor([[-100, 7, 3, -100, 8]])),
}


@pytest.mark.parametrize("name", ["label", "labels"])
@pytest.mark.parametrize("kind", LABELS)
def test_a_batch(kind, name):
    """Padding of the tokenizer is left out."""
    labels, expected = LABELS[kind]
    first = {"input_ids": [5, 6, 0, 0], "token_type_ids": [0, 1, 0, 0]}
    first["attention_mask"] = [1, 1, 0, 0]
    second = {"input_ids": [7, 8, 9], "token_type_ids": [0, 0, 1], "attention_mask": [1, 1, 1]}
    batch = FlatteningCollator()([first | {name: labels[0]}, second | {name: labels[1]}])
    rows = {"input_ids": [5, 6, 7, 8, 9], "token_type_ids": [0, 1, 0, 0, 1]}
    rows["position_ids"] = [0, 1, 0, 1, 2]
    whole = {key: torch.tensor([row]) for key, row in rows.items()}
    whole |= {"cu_seq_lens_q": torch.tensor([0, 2, 5], dtype=torch.int32), "labels": expected}
    torch.testing.assert_close(batch, whole, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ([], "the batch is empty"),
        ([{"input_ids": [[1, 2], [3, 4]]}], "multiple choice has to be padded"),
        ([{"input_ids": [1], "start_positions": 0}], "start_positions"),
        ([{"input_ids": [1, 2], "labels": [1, 0, 1]}], "2 tokens and labels of shape"),
        ([{"input_ids": [1, 2], "token_type_ids": [1]}], "token_type_ids of shape"),
        ([{"input_ids": [1], "label": 1}, {"input_ids": [2]}], "only some examples"),
    ],
)
def test_bad_input(features, words):
    with pytest.raises(ValueError, match=words) as caught:
        FlatteningCollator()(features)
    assert "\n" not in str(caught.value)
