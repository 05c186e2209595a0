"""Batches within a budget of tokens."""

import pytest

from hf_bert_impl.data.token_budget import cut_batches

WORDS = ["aaa", "bb", "ccccccc", "d", "eeee", "ff"]


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [
        ({}, [6]),
        ({"token_budget": 5}, [2, 1, 2, 1]),
        ({"token_budget": 1}, [1, 1, 1, 1, 1, 1]),
        ({"batch_size": 4}, [4, 2]),
        ({"token_budget": 12, "batch_size": 2}, [2, 2, 2]),
        ({"token_budget": 7, "batch_size": 3}, [2, 1, 3]),
    ],
)
def test_batches_are_as_large_as_the_limits_allow(limits, sizes):
    batches = list(cut_batches(iter(WORDS), len, **limits))
    assert [len(batch) for batch in batches] == sizes
    assert [word for batch in batches for word in batch] == WORDS


def test_no_items():
    assert list(cut_batches([], len, token_budget=3)) == []
