"""A tiny BERT with data of every task that it can learn, and small runs of pre-training."""

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from hf_bert_impl.training import finetuning, pretraining
from hf_bert_impl.training.finetuning import Sources, finetune
from hf_bert_impl.training.finetuning_options import FinetuningOptions
from tests.support.checkpoints import SPECIAL_TOKENS, save_checkpoint
from tests.training import cases
from tests.training.cases import small_run, task_of, write_text

FILLERS = ("the", "river", "rose", "over", "night", "and", "a", "day", "is", "here")
WORDS = (
    *SPECIAL_TOKENS,
    *FILLERS,
    *("good", "bad", "odd", "who", "what", "ann", "bob", "paris", "rome", "##ly", "##s", ".", ","),
)
NAMES = ([("ann", "B-per"), ("bobs", "I-per")], [("paris", "B-loc")], [("rome", "B-loc")])


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory) -> Path:
    """A random BERT with a tokenizer, as a folder."""
    folder = tmp_path_factory.mktemp("tiny") / "bert"
    return save_checkpoint(folder, "BertForPreTraining", words=WORDS, max_position_embeddings=43)


@pytest.fixture
def data(tmp_path) -> Callable[..., str]:
    """Writes sentences of unequal lengths as JSON lines, with the columns of every task."""

    def write(name: str, count: int, seed: int) -> str:
        chance, lines = random.Random(seed), []
        for _ in range(count):
            goods = chance.choice([0, 0, 1, 2, 3])
            moods = [*(["good"] * goods or ["bad"]), *["odd"] * chance.randrange(2)]
            fillers = chance.choices(FILLERS, k=chance.randint(2, 9))
            parts = [[(word, "O")] for word in (*fillers, *moods)] + [chance.choice(NAMES)]
            chance.shuffle(parts)
            words, tags = zip(*itertools.chain(*parts), strict=True)
            choices = chance.sample(["good day", "bad day", "bad night"], 3)
            line = {
                "text": " ".join(words),
                "mood": "G" if goods else "B",
                "moods": sorted({*moods} - {"bad"}),
                "score": goods * 1.5,
                "choices": choices,
                "right": choices.index("good day"),
                "tokens": words,
                "tags": tags,
                # Windows of it can be foretold.
                "line": "the river rose over night and " * 6,
            }
            lines.append(json.dumps(line) + "\n")
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
        return str(tmp_path / f"{name}.jsonl")

    return write


@pytest.fixture
def squad(tmp_path) -> Callable[..., str]:
    """Writes questions about sentences, most of which answer them, in SQuAD's format."""

    def write(count: int, seed: int) -> str:
        chance, paragraphs = random.Random(seed), []
        for number in range(count):
            name = chance.choice(["ann", "bob", "odd"])
            words = [*chance.choices(FILLERS, k=chance.randint(2, 9)), name]
            chance.shuffle(words)
            context, known = " ".join(words), name != "odd"
            answers = [{"text": name, "answer_start": context.index(name)}] if known else []
            question = {"id": str(number), "question": "who is here", "answers": answers}
            question["is_impossible"] = not known
            paragraphs.append({"context": context, "qas": [question]})
        file = tmp_path / f"squad {count}.json"
        file.write_text(json.dumps({"version": "v2.0", "data": [{"paragraphs": paragraphs}]}))
        return str(file)

    return write


@pytest.fixture
def run(tiny_bert, tmp_path, data, monkeypatch):
    """Fine-tune a classifier; arguments replace the task, sources and options."""
    draw = finetuning.write_pictures
    files = {"train": data("train", 40, 1), "validation": data("dev", 13, 2)}

    def run(task=None, callbacks=(), pictures=False, **changes):
        monkeypatch.setattr(finetuning, "write_pictures", draw if pictures else lambda *_: None)
        sources = files | {key: changes.pop(key) for key in (*files, "test") if key in changes}
        options = {"model": str(tiny_bert), "output": tmp_path / "out", "epochs": 1} | changes
        task = task or task_of("classification")
        return finetune(task, Sources(**sources), FinetuningOptions(**options), callbacks)

    return run


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a text, a tokenizer, and a cache."""
    folder = tmp_path_factory.mktemp("pretraining")
    write_text(folder / "text.txt", 60)
    (folder / "tokenizer").mkdir()
    vocab = (*SPECIAL_TOKENS, *cases.WORDS)
    (folder / "tokenizer" / "vocab.txt").write_text("\n".join(vocab) + "\n")
    return folder


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Draws no picture, which takes longer than the run."""
    monkeypatch.setattr(pretraining, "draw_curves", lambda file, *_: file.write_bytes(b""))


@pytest.fixture
def options(place, tmp_path):
    """Options of a small run; call it with what is to be different."""
    return lambda **changes: small_run(place, tmp_path / "run", **changes)


@pytest.fixture(scope="module")
def plain(place):
    """A whole run, measured and drawn, to compare with: its options and its result."""
    run = small_run(place, place / "plain", eval_steps=5)
    return run, pretraining.pretrain(run)
