"""Small random checkpoints on disk, and what several folders compare answers by."""

import json
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import hf_bert_impl

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (
    *SPECIAL_TOKENS,
    *("nice", "to", "meet", "you", "the", "river", "rose", "over", "night", "and", "a", ".", ","),
)


#: Texts of many lengths.
TEXTS = [f"the cat {'sat on the mat ' * (n % 7)}number {n}" for n in range(53)]
#: A tokenizer of another class than BERT's, which is written in Python and needs no library.
JAPANESE = {
    "tokenizer_class": "BertJapaneseTokenizer",
    "word_tokenizer_type": "basic",
    "subword_tokenizer_type": "character",
}
#: A vocabulary of words for the one and of letters for the other.
LETTERS = (*SPECIAL_TOKENS, *"nicetomyuhrvg.,", "nice", "to", "the", "river", "##s", "rose")
#: Texts on which the two differ.
LETTER_TEXTS = ["nice to meet the rivers", "The river rose.", "the " * 40, ""]


def tokenizer_of(words: Iterable[str] = WORDS[5:]) -> hf_bert_impl.BertTokenizer:
    """A tokenizer with ids 0 to 4 for special tokens, and from 5 on for the words."""
    tokens = (*SPECIAL_TOKENS, *words)
    return hf_bert_impl.BertTokenizer({token: number for number, token in enumerate(tokens)})


def name_tokenizer(
    folder: Path, settings: dict[str, Any] | None = None, config: dict[str, Any] | None = None
) -> Path:
    """Writes tokenizer_config.json, and fields into config.json."""
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    fields = json.loads((folder / "config.json").read_text()) | (config or {})
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def tiny_config(library: ModuleType = hf_bert_impl, **fields: Any) -> Any:
    """The config of a small BERT; `fields` are those in which it differs.

    Args:
        library: Whose class: this package's, or that of transformers.
        **fields: Of the config.
    """
    sizes = dict(
        vocab_size=len(WORDS),
        hidden_size=30,
        num_hidden_layers=2,
        num_attention_heads=5,
        intermediate_size=44,
        max_position_embeddings=31,
        initializer_range=0.2,
    )
    return library.BertConfig(**(sizes | fields))


def save_checkpoint(
    folder: Path,
    name: str = "BertForMaskedLM",
    *,
    words: tuple[str, ...] = WORDS,
    tokenizer: bool = True,
    library: ModuleType = hf_bert_impl,
    seed: int = 0,
    **fields: Any,
) -> Path:
    """Saves a random model of a class, by default with its vocabulary; gives the folder.

    Args:
        folder: Where to; it is made.
        name: The model's class.
        words: The vocabulary.
        tokenizer: Whether vocab.txt is written.
        library: Whose class: this package's, or that of transformers.
        seed: Of the weights.
        **fields: Of the config.
    """
    torch.manual_seed(seed)
    config = tiny_config(library, **({"vocab_size": len(words)} | fields))
    getattr(library, name)(config).save_pretrained(folder)
    if tokenizer:
        (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    return folder


def assert_same_answers(found: Any, expected: Any, tolerance: float = 2e-5) -> None:
    """Compares nested answers of a pipeline: numbers within the tolerance, all else exactly."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        found, expected = [found[name] for name in expected], [*expected.values()]
    if isinstance(expected, list | tuple):
        for one, other in zip(found, expected, strict=True):
            assert_same_answers(one, other, tolerance)
    else:
        assert found == pytest.approx(expected, abs=tolerance)
