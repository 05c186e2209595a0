"""Tokenizers of a few words."""

from collections.abc import Callable, Iterable

import pytest

from hf_bert_impl import BertTokenizer
from tests.support.checkpoints import SPECIAL_TOKENS


@pytest.fixture(scope="session")
def tokenizer_of() -> Callable[[Iterable[str]], BertTokenizer]:
    """A tokenizer whose ids are 0 to 4 for special tokens, and from 5 on for the words."""

    def make(words: Iterable[str]) -> BertTokenizer:
        return BertTokenizer(
            {word: number for number, word in enumerate((*SPECIAL_TOKENS, *words))}
        )

    return make
