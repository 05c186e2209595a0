"""What the tests of fine-tuning share."""

import json
import random

from hf_bert_impl.tasks.base import Columns

COLUMNS = Columns("0", None, "1")


def assert_nothing_left(tmp_path):
    assert not [entry.name for entry in tmp_path.iterdir() if entry.name.startswith("out")]


def write_history(folder, task, splits, outputs, history):
    """In place of pictures: what the Trainer logged, the loss of each step among it."""
    (folder / "history.json").write_text(json.dumps(history))


def squad_paragraphs(sentences):
    """SQuAD's paragraphs, version 2, of which some have no answer."""
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
