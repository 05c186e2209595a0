"""Spans of documents, and packs of them."""

import random

import pytest

from hf_bert_impl.data.text_spans import make_spans, pack
from hf_bert_impl.data.tokenized_documents import TokenizedDocument


def spans_of(lengths, max_length=17, short_seq_prob=0.0, seed=0):
    place = iter(range(10_000))
    document = TokenizedDocument.from_sentences([[next(place) for _ in range(n)] for n in lengths])
    rng = random.Random(seed)
    return list(make_spans(document, rng, max_length=max_length, short_seq_prob=short_seq_prob))


@pytest.mark.parametrize(
    ("lengths", "spans"),
    [
        ([3], [3]),
        ([7, 7, 7], [14, 7]),
        ([15], [15]),
        ([16, 2], [15, 3]),
        ([8, 8, 40], [8, 8, 15, 15, 10]),
    ],
)
def test_whole_sentences_where_they_fit(lengths, spans):
    assert [len(span) for span in spans_of(lengths)] == spans


def test_all_text_in_order():
    rng = random.Random(1)
    for seed in range(50):
        lengths = [rng.randint(1, 60) for _ in range(20)]
        spans = spans_of(lengths, short_seq_prob=0.5, seed=seed)
        assert [token for span in spans for token in span] == list(range(sum(lengths)))
        assert max(map(len, spans)) <= 15


def test_some_documents_are_cut_short():
    longest = [max(map(len, spans_of([4] * 60, 62, 0.5, seed))) for seed in range(200)]
    assert 60 < sum(length < 55 for length in longest) < 120


def test_no_room():
    with pytest.raises(ValueError, match="max_length=2 leaves no room"):
        spans_of([1], max_length=2)


@pytest.mark.parametrize("capacity", [20, 128])
def test_packs_are_full(capacity):
    rng = random.Random(0)
    lengths = [rng.randint(3, capacity) for _ in range(997)]
    packs = pack(lengths, capacity)
    assert sorted(number for numbers in packs for number in numbers) == list(range(997))
    assert max(sum(lengths[n] for n in numbers) for numbers in packs) <= capacity
    assert len(packs) < 1.04 * sum(lengths) / capacity + 1


def test_packs_of_little():
    assert pack([], 5) == []
    assert pack([5, 5], 5) == [[0], [1]]
    assert pack([2, 3, 4], 5) == [[2], [1, 0]]
    with pytest.raises(ValueError, match="a span of 6 tokens does not fit the capacity 5"):
        pack([6], 5)
