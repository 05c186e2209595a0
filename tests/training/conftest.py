"""A tiny BERT, and files of every task that it can learn."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoints import SPECIAL_TOKENS, save_checkpoint

pytest.importorskip("sklearn", reason="pip install 'hf_bert_impl[train]'")
pytest.importorskip("seqeval", reason="pip install 'hf_bert_impl[train]'")
pytest.importorskip("matplotlib", reason="pip install 'hf_bert_impl[train]'")

FILLERS = ("the", "river", "rose", "over", "night", "and", "a", "day", "is", "here")
WORDS = (
    *SPECIAL_TOKENS,
    *FILLERS,
    *("good", "bad", "odd", "who", "what", "ann", "bob", "paris", "rome", "##ly", "##s", ".", ","),
)


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory) -> Path:
    """A random BERT with a tokenizer, as a folder."""
    folder = tmp_path_factory.mktemp("tiny") / "bert"
    return save_checkpoint(folder, "BertForPreTraining", words=WORDS, max_position_embeddings=43)


@pytest.fixture
def sentences() -> Callable[..., list[list[str]]]:
    """Random sentences of fillers, of unequal lengths."""

    def make(count: int, seed: int) -> list[list[str]]:
        chance = random.Random(seed)
        return [chance.choices(FILLERS, k=chance.randint(2, 9)) for _ in range(count)]

    return make


@pytest.fixture
def sentiment(tmp_path, sentences) -> Callable[..., str]:
    """Write sentences with "good" or "bad" in them and that label, without a header."""

    def write(name: str, count: int, seed: int) -> str:
        chance = random.Random(-seed - 1)
        lines = []
        for words in sentences(count, seed):
            label = chance.choice(["good", "bad"])
            words.insert(chance.randrange(len(words)), label)
            lines.append(f"{' '.join(words)}\t{label[0].upper()}\n")
        (tmp_path / f"{name}.tsv").write_text("".join(lines))
        return str(tmp_path / f"{name}.tsv")

    return write
