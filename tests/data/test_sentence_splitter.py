"""Prose into sentences."""

import pytest

from hf_bert_impl.data.sentence_splitter import split_sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["One.", "Two!", "Three?"],
        ["Dr. Li met Mr. and Mrs. Wu.", "She ran."],
        ["It cost 3.50 dollars.", "That was No. 7.", "So what?"],
        ["J. R. R. Tolkien wrote it.", "And I.", "He did."],
        ["She lives in the U.S.", "It is large."],
        ["The U.S. Senate met at 5 p.m. Monday.", "It left."],
        ["“Why?” he asked.", "Nobody knew (not even she.)", "Well."],
        ["He said “Go.”", "She went."],
        ["Apples, pears, etc. are fruit.", "See e.g. Fig. 3."],
        ["Wait... what?", "Yes!!", "No."],
        ["今天下雨。", "我们回家！", "“好吗？”", "他说。"],
        # Punctuation stands apart in WikiText, and a full stop of its own ends a sentence.
        ['He said , " it ended . "', "then left .", "an end ?", '" No , " he said .', "H. g ."],
        ["यह एक वाक्य है।", "यह दूसरा है।"],
    ],
)
def test_sentences(sentences):
    """Chinese, Japanese and Hindi need no space between sentences, Latin scripts do."""
    joined = "" if ord(sentences[0][0]) > 0x3000 else " "
    assert split_sentences(joined.join(sentences)) == [s for s in sentences if s]


@pytest.mark.parametrize("text", ["", "  \t ", "...", "No. No. No.", " a . b .c. d", "?!", "。。"])
def test_nothing_is_lost(text):
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())


def test_long_runs_take_linear_time():
    """Quadratic time would be minutes, beyond the time limit of a test."""
    for text in ("." * 200_000, "a." * 100_000, '"' * 200_000, " ." * 100_000, "x" * 200_000):
        assert "".join("".join(split_sentences(text)).split()) == text.replace(" ", "")
