"""A tiny model with a tokenizer, and the attention of a trained one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import hf_bert_impl
from tests.support.checkpoints import SPECIAL_TOKENS, save_checkpoint

WORDS = (
    *SPECIAL_TOKENS,
    *("the", "cat", "sat", "nap", "##s", "was", "tired", ".", "<", ">", "/", '"', "&", "$", "b"),
)
LAYERS, HEADS, POSITIONS = 3, 5, 23


class Loaded(NamedTuple):
    """A model with its tokenizer."""

    model: Any
    tokenizer: Any


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Loaded]:
    """Makes a random model."""

    def make(name: str = "BertModel", **fields: Any) -> Loaded:
        sizes = dict(
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            max_position_embeddings=POSITIONS,
            initializer_range=0.5,
        )
        folder = save_checkpoint(tmp_path / name, name, words=WORDS, seed=3, **sizes, **fields)
        model = getattr(hf_bert_impl, name).from_pretrained(folder)
        return Loaded(model, hf_bert_impl.BertTokenizer.from_pretrained(folder))

    return make
