"""A tiny BERT with files of every task that it can learn, and small runs of pre-training."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import TrainerCallback

from hf_bert_impl.tasks.registry import make_task
from hf_bert_impl.training import finetuning, pretraining
from hf_bert_impl.training.finetuning import Sources, finetune
from hf_bert_impl.training.finetuning_options import FinetuningOptions
from tests.support.checkpoints import SPECIAL_TOKENS, save_checkpoint
from tests.training import cases
from tests.training.cases import COLUMNS, small_run, write_text

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


@pytest.fixture
def run(tiny_bert, tmp_path, sentiment, monkeypatch):
    """Fine-tune on sentiment data, without pictures; arguments replace sources and options."""
    monkeypatch.setattr(finetuning, "write_pictures", lambda *_: None)
    files = {"train": sentiment("train", 40, 1), "validation": sentiment("dev", 13, 2)}

    def run(task=None, callbacks=(), **changes):
        sources = files | {key: changes.pop(key) for key in (*files, "test") if key in changes}
        options = {"model": str(tiny_bert), "output": tmp_path / "out", "epochs": 1} | changes
        return finetune(
            task or make_task("classification", COLUMNS),
            Sources(**sources),
            FinetuningOptions(**options),
            callbacks,
        )

    return run


class Recipe(TrainerCallback):
    """Keeps the rates, and what the optimizer does to each parameter."""

    def __init__(self):
        self.rates, self.groups = [], {}

    def on_log(self, args, state, control, logs, **rest):
        self.rates += [logs["learning_rate"]] if "learning_rate" in logs else []

    def on_step_end(self, args, state, control, model, optimizer, **rest):
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.groups[names[id(parameter)]] = group["weight_decay"], group["eps"]


@pytest.fixture
def recipe():
    return Recipe()


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
