"""What the tests of fine-tuning share."""

import json
import random
from pathlib import Path
from typing import Any

from hf_bert_impl.tasks.base import Columns

COLUMNS = Columns("0", None, "1")


def assert_nothing_left(tmp_path: Path) -> None:
    assert not [entry.name for entry in tmp_path.iterdir() if entry.name.startswith("out")]


def write_history(folder: Path, task: Any, splits: Any, outputs: Any, history: list) -> None:
    """In place of pictures: what the Trainer logged, the loss of each step among it."""
    (folder / "history.json").write_text(json.dumps(history))


def squad_paragraphs(sentences: list[list[str]]) -> list[dict]:
    """Contexts out of sentences, each with a question; most of them answer it."""
    chance, paragraphs = random.Random(11), []
    for number, words in enumerate(sentences):
        known = chance.random() < 0.6
        name = chance.choice(["ann", "bob"])
        words.insert(chance.randrange(len(words) + 1), name if known else "odd")
        context = " ".join(words)
        answers = [{"text": name, "answer_start": context.index(name)}] if known else []
        question = {"id": str(number), "question": "who is here", "answers": answers}
        paragraphs.append({"context": context, "qas": [question | {"is_impossible": not known}]})
    return paragraphs
