"""Documents as token ids."""

import pytest

from hf_bert_impl.data.tokenized_documents import TokenizedDocument, tokenize


@pytest.fixture
def document():
    return TokenizedDocument.from_sentences([[1, 2, 3], [], [4], [5, 6]])


def test_sentences(document):
    assert len(document) == 3
    assert document.tokens(0, 3) == [1, 2, 3, 4, 5, 6]
    assert document.tokens(1, 2) == [4]


@pytest.mark.parametrize(
    ("start", "target", "end"), [(0, 1, 1), (0, 3, 1), (0, 4, 2), (0, 99, 3), (1, 1, 2), (2, 1, 3)]
)
def test_reach(document, start, target, end):
    assert document.reach(start, target) == end


def test_tokenize(tokenizer_of):
    tokenizer = tokenizer_of(["un", "##seen", "a"])
    first, second, third = tokenize([["unseen", "\x00", "a a"], ["\x00"], ["a"]], tokenizer)
    assert first.ids.tolist() == [5, 6, 7, 7]
    assert first.lengths.tolist() == [2, 2]
    assert len(second) == 0  # nothing but a control character
    assert third.ids.tolist() == [7]
