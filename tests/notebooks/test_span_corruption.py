"""notebooks/lessons/span_corruption.py on the example of T5's paper, and on random texts."""

from lessons.span_corruption import corrupt


def test_the_papers_example():
    text = ["Thank", "you", "for", "inviting", "me", "to", "your", "party", "last", "week", "."]
    source, target = corrupt(text, [(2, 4), (8, 9)])
    assert source == ["Thank", "you", "<0>", "me", "to", "your", "party", "<1>", "week", "."]
    assert target == ["<0>", "for", "inviting", "<1>", "last", "<2>"]
