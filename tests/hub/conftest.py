"""Tiny models with a tokenizer, as they are published."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hf_bert_impl
from tests.checkpoints import SPECIAL_TOKENS
from tests.model.cases import random_config, random_model

WORDS = (
    *SPECIAL_TOKENS,
    *("hello", "world", "who", "was", "the", "river", "rose", "night", "##s", "and", "a", ".", ","),
)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tokenizer of a few words."""
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return hf_bert_impl.BertTokenizer.from_pretrained(folder)


@pytest.fixture
def tiny() -> Callable[..., Any]:
    """Makes a random model of a class."""

    def make(name: str = "BertForMaskedLM", **fields: Any) -> Any:
        config = random_config(3, name, **({"type_vocab_size": 2} | fields))
        return random_model(name, config)

    return make
