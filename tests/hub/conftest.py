"""Tiny models with a tokenizer, as they are published."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.model.cases import random_config, random_model
from tests.support.checkpoints import tokenizer_of


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """A tokenizer of a few words."""
    return tokenizer_of()


@pytest.fixture
def tiny() -> Callable[..., Any]:
    """Makes a random model of a class."""

    def make(name: str = "BertForMaskedLM", **fields: Any) -> Any:
        config = random_config(3, name, **({"type_vocab_size": 2} | fields))
        return random_model(name, config)

    return make
