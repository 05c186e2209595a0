"""A tiny checkpoint on disk, and the command line run inside the test's process."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import hf_bert_impl
from hf_bert_impl.cli import main

WORDS = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("nice", "to", "meet", "you", "the", "river", "rose", "over", "night", "and", "a", ".", ","),
)


class Result(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str


@pytest.fixture
def hf_bert(capsys: pytest.CaptureFixture[str], monkeypatch) -> Callable[..., Result]:
    """Run `hf-bert` with these arguments, in a window of 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: object) -> Result:
        status = main([str(argument) for argument in arguments])
        return Result(status, *capsys.readouterr())

    return run


@pytest.fixture
def one_error_line() -> Callable[..., None]:
    """Check that a command failed for bad input, with one line that holds these words."""

    def check(result: Result, *words: str) -> None:
        assert result.status == 2
        assert result.out == ""
        assert result.err.startswith("error: ")
        assert result.err.count("\n") == 1
        for word in words:
            assert word in result.err

    return check


@pytest.fixture
def save_tiny(tmp_path: Path) -> Callable[..., Path]:
    """Save a random model, by default with its tokenizer."""

    def save(name: str = "BertForMaskedLM", *, tokenizer: bool = True, **fields: object) -> Path:
        torch.manual_seed(0)
        config = hf_bert_impl.BertConfig(
            vocab_size=len(WORDS),
            hidden_size=30,
            num_hidden_layers=2,
            num_attention_heads=5,
            intermediate_size=44,
            max_position_embeddings=31,
            initializer_range=0.2,
            **fields,
        )
        folder = tmp_path / name
        getattr(hf_bert_impl, name)(config).save_pretrained(folder)
        if tokenizer:
            (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
        return folder

    return save
