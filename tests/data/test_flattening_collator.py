"""Packed batches compared with padded ones, through the real heads."""

import pytest
import torch

from hf_bert_impl.data import FlatteningCollator
from hf_bert_impl.data.task_collator import collate
from tests.model.cases import random_config, random_model

LENGTHS = (5, 1, 9, 3)


def examples(label):
    """Sequences of unlike lengths; `label` makes one's label out of its number and length."""
    generator = torch.Generator().manual_seed(4)

    def row(most, length):
        return torch.randint(1, most, (length,), generator=generator).tolist()

    return [
        {"input_ids": row(20, n), "token_type_ids": row(2, n), "labels": label(i, n)}
        for i, n in enumerate(LENGTHS)
    ]


def padded(features, kind):
    names = {"labels": "token_labels"} if kind in ("tags", "words") else {}
    return collate([{names.get(it, it): row[it] for it in row} for row in features], 0)


KINDS = {
    "classes": ("BertForSequenceClassification", 3, lambda i, n: i % 3),
    "number": ("BertForSequenceClassification", 1, lambda i, n: 0.5 * i),
    "several": ("BertForSequenceClassification", 3, lambda i, n: [1.0, 0.0, float(i % 2)]),
    "pair": ("BertForNextSentencePrediction", 2, lambda i, n: i % 2),
    "tags": ("BertForTokenClassification", 5, lambda i, n: [-100, *range(1, 5), 1, 2, 3, 4][:n]),
    "words": ("BertForMaskedLM", 2, lambda i, n: [-100, 7, -100, 3, -100, 8, 9, -100, 1][:n]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_are_those_of_the_padded_batch(kind):
    name, count, label = KINDS[kind]
    model = random_model(name, random_config(3, name, num_labels=count, type_vocab_size=2))
    features = examples(label)
    results = []
    for batch in (FlatteningCollator()(features), padded(features, kind)):
        model.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        gradients = [it.grad.clone() for it in model.parameters() if it.grad is not None]
        results.append([loss.detach(), *gradients])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


def test_padding_of_the_tokenizer_is_left_out():
    batch = FlatteningCollator()(
        [
            {"input_ids": [5, 6, 0, 0], "attention_mask": [1, 1, 0, 0], "label": 2},
            {"input_ids": [7, 8, 9], "attention_mask": [1, 1, 1], "label": 0},
        ]
    )
    expected = {"input_ids": [[5, 6, 7, 8, 9]], "position_ids": [[0, 1, 0, 1, 2]]}
    expected |= {"cu_seq_lens_q": [0, 2, 5], "labels": [2, 0]}
    assert {name: values.tolist() for name, values in batch.items()} == expected
    assert batch["labels"].dtype == torch.long


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
