"""notebooks/lessons/span_corruption.py on the example of T5's paper, and on random texts."""

import random

import pytest

from lessons.span_corruption import choose_spans, corrupt


def test_the_papers_example():
    text = ["Thank", "you", "for", "inviting", "me", "to", "your", "party", "last", "week", "."]
    source, target = corrupt(text, [(2, 4), (8, 9)])
    assert source == ["Thank", "you", "<0>", "me", "to", "your", "party", "<1>", "week", "."]
    assert target == ["<0>", "for", "inviting", "<1>", "last", "<2>"]


@pytest.mark.parametrize("length", [2, 3, 17, 100])
def test_spans_do_not_touch_and_cover_the_share(length):
    for seed in range(30):
        spans = choose_spans(length, random.Random(seed))
        assert all(begin < end for begin, end in spans)
        edges = [0, *(edge for span in spans for edge in span)]
        assert all(end < begin for end, begin in zip(edges[:-1:2], edges[1::2], strict=True))
        assert edges[-1] <= length
        cut = sum(end - begin for begin, end in spans)
        assert cut == max(1, round(0.15 * length))
        assert len(spans) == max(1, round(cut / 3))
