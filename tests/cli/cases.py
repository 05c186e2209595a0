"""Every command with small data: what the suites over all commands run."""

import io
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from hf_bert_impl import TextEncoder
from hf_bert_impl.cli import app
from tests.encoders.cases import save_family
from tests.support.checkpoints import save_checkpoint
from tests.support.commands import Result
from tests.support.damage import DEEP, cut, fields, save_usable, write
from tests.tasks.senteval_folder import write_senteval

APP: Any = typer.main.get_command(app)
COMMANDS = tuple(
    f"{name} {below}".strip()
    for name, command in APP.commands.items()
    for below in getattr(command, "commands", [""])
)


def options_of(command: str) -> list[str]:
    """All options of a command."""
    found = APP
    for word in command.split():
        found = found.commands[word]
    return [name for one in found.params for name in (*one.opts, *one.secondary_opts)]


SMALL = "--layers 1 --hidden-size 20 --heads 5 --intermediate-size 28 --max-length 16"
LABELS = "--text-column 0 --label-column 1"
#: Command lines for the folder of the fixture `place`; they write `new/out`.
RUNS = {
    "embed": "embed BertModel texts.txt -o new/out.npy",
    "answer": "answer BertForQuestionAnswering questions.jsonl -o new/out.jsonl",
    "classify": "classify BertForSequenceClassification texts.txt -o new/out",
    "fill-mask": "fill-mask BertForMaskedLM [MASK]",
    "attention": "attention BertForMaskedLM the -o new/out.html",
    "tokenizer train": "tokenizer train texts.txt -o new/out --vocab-size 60",
    "tokenizer words": "tokenizer words texts.txt -o new/out",
    "pretrain": "pretrain texts.txt --tokenizer BertForMaskedLM -o new/out --max-steps 1 "
    f"--batch-size 2 -q --config run.yaml {SMALL}",
    "finetune": "finetune BertModel labels.tsv --task classification -o new/out "
    f"--epochs 1 -q {LABELS}",
    "verify": "verify BertForMaskedLM --no-bf16",
    "evaluate squad": "evaluate squad BertForQuestionAnswering squad.json -q",
    "evaluate senteval": "evaluate senteval BertModel senteval --folds 2 --tasks STS12 "
    "-o new/out.json",
    "evaluate sts": "evaluate sts BertModel sts.tsv",
    "evaluate probe": f"evaluate probe BertModel labels.tsv --folds 2 {LABELS}",
    "evaluate regression": "evaluate regression regression numbers.tsv "
    "--text-column 1 --label-column 0",
    "evaluate classification": "evaluate classification BertForSequenceClassification "
    f"labels.tsv {LABELS}",
    "evaluate token-classification": "evaluate token-classification tagger tags.conll",
    "evaluate masked-lm": "evaluate masked-lm BertForMaskedLM texts.txt -q",
    "benchmark": "benchmark --random tiny --cases sentence --peers unchanged --rounds 1 "
    "--threads 1 -o new/out.json",
    "inspect": "inspect BertForMaskedLM",
    "convert": "convert BertForMaskedLM -o new/out --no-check",
    "export": "export BertForMaskedLM -o new/out",
    "push": "push BertForMaskedLM me/x --dry-run new/out --no-speed",
}
#: Models of a class in a folder of its name, and others with their fields of the config.
CLASSIFIER = "BertForSequenceClassification"
MODELS = ("BertModel", "BertForMaskedLM", "BertForQuestionAnswering", CLASSIFIER)
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "regression": (CLASSIFIER, {"num_labels": 1}),
    "tagger": ("BertForTokenClassification", {"id2label": {0: "O", 1: "B-x"}}),
    "bare": ("BertForMaskedLM", {"tokenizer": False}),
}
#: Files that the commands read; those in `bad/` cannot be read.
FILES = Path(__file__).parents[1] / "fixtures" / "command_line"


def make_place(place: Path) -> Path:
    """Makes the folder; in its models `return_dict` is off, on which no command may rely."""
    for name in MODELS:
        save_usable(place / name, name)
    for folder, (name, options) in OTHERS.items():
        save_checkpoint(place / folder, name, **options)
    for folder in ("roberta", "unknown"):  # of other architectures
        save_family(place / folder, "RobertaModel")
    fields("config.json", model_type="new")(place / "unknown")
    for folder in (*MODELS, *OTHERS):
        fields("config.json", return_dict=False)(place / folder)
    shutil.copytree(FILES, place, dirs_exist_ok=True)
    for name in MODELS:
        cut(shutil.copytree(place / name, place / f"{name}-cut"))
    maskless = shutil.copytree(place / "BertForMaskedLM", place / "maskless")
    fields("tokenizer_config.json", mask_token=None)(maskless)
    (maskless / "special_tokens_map.json").unlink()
    for ending in ("json", "jsonl"):
        write(f"bad/deep.{ending}", DEEP)(place)
    for name in ("new", "folder.npy", "v1.5"):
        (place / name).mkdir()
    write_senteval(place / "senteval")
    return place


def tree(folder: Path) -> dict[Path, bytes | None]:
    """Every file below with its content, and every folder."""
    return {file: file.read_bytes() if file.is_file() else None for file in folder.rglob("*")}


def one_error_line(result: Result, *words: str) -> None:
    """Checks that a command failed for bad input, with a one-line message that has these words."""
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("error: ") and result.err.count("\n") == 1
    for word in words:
        assert word in result.err


def paths_in(command: str) -> Iterator[tuple[list[str], str, list[str]]]:
    """Each path that a command reads or writes, with the words before and after it."""
    words, start = RUNS[command].split(), len(command.split())
    for number, word in enumerate(words[start:], start):
        if word.startswith("new/") or Path(word).exists():
            yield words[:number], word, words[number + 1 :]


# --- texts and their vectors -----------------------------------------------------------------

LINES = ["nice to meet you", "", "the river rose over night, and you.", "a", "Nice to the river"]


def expected(model: Any, texts: list[str] = LINES, **options: Any) -> Any:
    return TextEncoder.from_pretrained(model, device="cpu").encode(texts, **options)


def assert_complete(output: Path, vectors: np.ndarray) -> None:
    """The file holds these vectors and is alone in its folder."""
    found = np.load(output)
    assert found.dtype == np.float32
    assert found.shape == vectors.shape
    assert np.abs(found - vectors).max() < 1e-5
    assert {file.name for file in output.parent.iterdir()} == {output.name}


def give_input(monkeypatch: pytest.MonkeyPatch, texts: list[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(texts).encode())))
