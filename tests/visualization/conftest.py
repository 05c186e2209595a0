"""A tiny model with a tokenizer, and the attention of a trained one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import hf_bert_impl

WORDS = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
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
        torch.manual_seed(3)
        config = hf_bert_impl.BertConfig(
            vocab_size=len(WORDS),
            hidden_size=30,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=44,
            max_position_embeddings=POSITIONS,
            initializer_range=0.5,
            **fields,
        )
        (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
        model = getattr(hf_bert_impl, name)(config).eval()
        return Loaded(model, hf_bert_impl.BertTokenizer.from_pretrained(tmp_path))

    return make


@pytest.fixture(scope="session")
def minilm(minilm_path: Path) -> Loaded:
    """all-MiniLM-L6-v2: six layers of twelve heads."""
    return Loaded(
        hf_bert_impl.BertModel.from_pretrained(minilm_path),
        hf_bert_impl.BertTokenizer.from_pretrained(minilm_path),
    )
