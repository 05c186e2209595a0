"""From raw IMDB reviews to a sentiment model of one's own, by `hf-bert`'s commands.

    python -m benchmarks.imdb_end_to_end $HF_BERT_DATA/imdb/imdb_first_1999.csv --output imdb
    python -m benchmarks.imdb_end_to_end aclImdb --output imdb  # the whole data set, as published
    python -m benchmarks.imdb_end_to_end aclImdb --output imdb --start MODEL  # of a published model

1. The reviews are split, and a vocabulary is learnt from the training part. Of the whole data set
   that part is `aclImdb/train` without duplicates of `aclImdb/test`, which is the test part. With
   `--start` pre-training continues a published model, with its vocabulary.
2. Pre-training examples are shown: a next-sentence pair of each kind from the reviews, and the five
   cases of masking on a real sentence, with their frequencies.
3. `hf-bert pretrain` is killed with SIGKILL in the middle, resumed with `--resume`, and reports its
   accuracies on held-out reviews.
4. The sentiment is learnt from a part of the reviews with their labels. It starts from the
   pre-trained model, from MODEL, and from random weights of the same architecture, with the same
   commands and seeds. Random weights get more epochs than a published model, since they begin to
   learn later. A logistic regression on word counts is the baseline.

`--small` takes some minutes on two cores and only shows that everything runs. FOLDER keeps all
files and gets results.json.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from transformers import set_seed

from benchmarks.pretraining_examples import show_masking, show_pairs
from hf_bert_impl import BertConfig, BertModel, BertTokenizer, cli
from hf_bert_impl.checkpoints import open_checkpoint
from hf_bert_impl.data.documents import without_breaks
from hf_bert_impl.data.task_files import read_rows
from hf_bert_impl.data.text_folder import UNLABELLED, text_files
from hf_bert_impl.errors import InputError
from hf_bert_impl.files.atomic import atomic_file
from hf_bert_impl.files.text import read_text
from hf_bert_impl.inference.loading import load_tokenizer
from hf_bert_impl.tables import console, print_table
from hf_bert_impl.training.checkpointing import last_checkpoint, step_of
from hf_bert_impl.training.finetuning import spread
from hf_bert_impl.training.reporting import LOG

COMMAND = str(Path(sys.executable).with_name("hf-bert"))
COLUMNS = ("review", "sentiment")
#: How often the log of the run that will be killed is looked at.
LOOK_SECONDS = 0.05


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is trained on how much."""

    test: int
    """Reviews that are only scored."""
    labelled: int
    """Reviews whose sentiment is known; pre-training reads all that are not for the test."""
    vocab_size: int
    layers: int
    hidden_size: int
    max_length: int
    """Tokens at which reviews and pairs are cut."""
    dupe_factor: int
    steps: int
    save_steps: int
    learning_rate: float
    epochs: int
    """Of the fine-tuning."""
    epochs_from_nothing: int
    """Of the fine-tuning of random weights, which begin to learn later."""
    finetuning_rate: float
    batch_size: int = 16
    seeds: tuple[int, ...] = (1, 2, 3)


FULL = Sizes(
    test=500,
    labelled=1000,
    vocab_size=6000,
    layers=4,
    hidden_size=256,
    max_length=256,
    dupe_factor=10,
    steps=3000,
    save_steps=500,
    learning_rate=1e-3,
    epochs=4,
    epochs_from_nothing=4,
    finetuning_rate=2e-4,
)
#: To continue a published model, whose own sizes take the place of those above.
FURTHER = dataclasses.replace(
    FULL,
    max_length=128,
    dupe_factor=5,
    steps=600,
    save_steps=100,
    learning_rate=2e-4,
    epochs=2,
    epochs_from_nothing=5,
    finetuning_rate=1e-4,
)
SMALL = Sizes(
    test=200,
    labelled=200,
    vocab_size=2000,
    layers=2,
    hidden_size=64,
    max_length=64,
    dupe_factor=2,
    steps=300,
    save_steps=100,
    learning_rate=2e-3,
    epochs=2,
    epochs_from_nothing=2,
    finetuning_rate=5e-4,
)
#: The learning rate of random weights would destroy a published model's knowledge.
SMALL_FURTHER = dataclasses.replace(
    SMALL, learning_rate=FURTHER.learning_rate, finetuning_rate=FURTHER.finetuning_rate
)


def main(
    reviews: Annotated[
        Path, typer.Argument(help="A CSV with columns review and sentiment, or the folder aclImdb.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="A new folder.")],
    start: Annotated[
        str | None, typer.Option(help="The folder or hub id of a model to continue.")
    ] = None,
    small: Annotated[bool, typer.Option("--small", help="Some minutes; figures mean little.")] = (
        False
    ),
) -> None:
    """Pre-train, kill, resume and fine-tune on IMDB reviews, and print what came of it."""
    try:
        further, beginning = (SMALL_FURTHER, SMALL) if small else (FURTHER, FULL)
        run(reviews, output, further if start else beginning, start)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None


def run(reviews: Path, output: Path, sizes: Sizes, start: str | None = None) -> dict[str, Any]:
    """Does all of it.

    Args:
        reviews: A CSV with columns `review` and `sentiment`, or the folder aclImdb.
        output: A new folder.
        sizes: How much.
        start: A model to continue; None for random weights and a vocabulary of the reviews.

    Returns:
        The content of results.json.

    Raises:
        OSError, ValueError: The reviews or the model cannot be read, the reviews are too few, or
            the folder exists.
        typer.Exit: A command failed; it has said why.
    """
    published = open_checkpoint(start, with_tokenizer=True) if start else None
    train, labelled, test = divide(reviews, output, sizes)
    begin = time.perf_counter()
    origin: tuple[object, ...]
    if published:
        origin, tokenizer = ("--model", start), load_tokenizer(published.path)
        sizes = dataclasses.replace(
            sizes,
            vocab_size=published.config["vocab_size"],
            layers=published.config["num_hidden_layers"],
            hidden_size=published.config["hidden_size"],
        )
    else:
        words, config = output / "words", output / "config.json"
        hf_bert(
            *("tokenizer", "train", train, "--column", "review"),
            *("--vocab-size", sizes.vocab_size, "--lowercase", "--output", words),
        )
        tokenizer = BertTokenizer.from_pretrained(words)
        config.write_text(json.dumps(architecture(sizes, len(tokenizer))))
        origin = ("--tokenizer", words, "--config", config)
    show_pairs(train, "review", tokenizer)
    found: dict[str, Any] = {"start": start, "sizes": dataclasses.asdict(sizes)}
    found["masking"] = show_masking(train, "review", tokenizer)
    found["pretraining"] = pretrain(train, origin, output / "bert", sizes)
    found["sentiment"] = sentiment(labelled, test, output, sizes, start)
    found["seconds"] = round(time.perf_counter() - begin)
    with atomic_file(output / "results.json") as fresh:
        fresh.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print(f"{output / 'results.json'}: all in {found['seconds'] / 60:.1f} minutes")
    return found


def divide(reviews: Path, output: Path, sizes: Sizes) -> tuple[Path, Path, Path]:
    """Writes the training reviews, the labelled part of them, and the test reviews."""
    if output.exists():
        raise InputError(f"{output} exists. Expected a new folder. Name another.")
    train, test = read_folder(reviews) if reviews.is_dir() else read_table(reviews, sizes)
    # The published files hold some reviews twice: none may be on both sides.
    train = {text: label for text, label in train.items() if text not in test}
    labelled = [(text, label) for text, label in train.items() if label]
    for found, needed in ((labelled, sizes.labelled), (test, sizes.test)):
        if len(found) < needed:
            raise InputError(
                f"{reviews} holds {len(train) + len(test)} different reviews. Expected at least "
                f"{sizes.labelled} to learn from and {sizes.test} to test on. Give more, or ask "
                "for --small."
            )
    output.mkdir(parents=True)
    parts = {
        "train": [*train.items()],
        "labelled": labelled[: sizes.labelled],
        "test": [*test.items()][: sizes.test],
    }
    files = []
    for name, part in parts.items():
        files.append(output / f"{name}.csv")
        with files[-1].open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream).writerows([COLUMNS, *part])
    return files[0], files[1], files[2]


def read_table(reviews: Path, sizes: Sizes) -> tuple[dict[str, str], dict[str, str]]:
    """The reviews to train and to test on, with their sentiments, in an order drawn once."""
    rows = shuffled({row.values[0]: row.values[1] for row in read_rows(reviews, COLUMNS)})
    items = [*rows.items()]
    return dict(items[sizes.test :]), dict(items[: sizes.test])


def read_folder(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The same of the folder aclImdb; what is unlabelled there has no sentiment."""
    for part in ("train", "test"):
        if not (folder / part).is_dir():
            raise InputError(
                f"{folder} has no folder {part}. Expected train and test. Name aclImdb."
            )
    train, test = (
        {row.values[0]: row.values[1] for row in read_rows(folder / part, ("text", "label"))}
        for part in ("train", "test")
    )
    unlabelled = dict.fromkeys(map(read_text, text_files(folder / "train" / UNLABELLED)), "")
    return shuffled(unlabelled | train), shuffled(test)


def shuffled(reviews: dict[str, str]) -> dict[str, str]:
    """The same reviews in an order that is the same each time."""
    items = [*reviews.items()]
    random.Random(0).shuffle(items)
    return dict(items)


def pretrain(reviews: Path, origin: Sequence[object], bert: Path, sizes: Sizes) -> dict[str, Any]:
    """Pre-trains, with a crash in the middle, and returns what the log says."""
    command = [
        *("pretrain", reviews, "--column", "review", *origin),
        *("--max-length", sizes.max_length, "--dupe-factor", sizes.dupe_factor),
        *("--validation-share", 0.05, "--batch-size", sizes.batch_size),
        *("--learning-rate", sizes.learning_rate, "--warmup", 0.1),
        *("--max-steps", sizes.steps, "--save-steps", sizes.save_steps),
        *("--eval-steps", sizes.save_steps, "--output", bert),
    ]
    killed = run_and_kill(command, bert, sizes.steps // 2)
    checkpoint = last_checkpoint(bert)
    resumed = 0 if checkpoint is None else step_of(checkpoint)
    print(f"killed after step {killed}; goes on from step {resumed}", flush=True)
    hf_bert(*command, "--resume")
    log = read_log(bert)
    steps = [entry["step"] for entry in log if "mlm_loss" in entry]
    assert steps == sorted({*steps}), "each step is logged once, whatever was done twice"
    held_out = [entry for entry in log if "eval_mlm_loss" in entry]
    assert held_out[-1]["step"] == sizes.steps
    names = [f"eval_{task}_{kind}" for task in ("mlm", "nsp") for kind in ("loss", "accuracy")]
    print_table(
        console(),
        "Held-out reviews while pre-training goes on",
        ["step", "masked words: loss", "right", "next sentence: loss", "right"],
        [
            [
                f"{entry['step']:,}",
                *(
                    f"{entry[name]:.1%}" if "accuracy" in name else f"{entry[name]:.3f}"
                    for name in names
                ),
            ]
            for entry in held_out
        ],
        words=(),
    )
    return {
        "killed_after_step": killed,
        "resumed_from_step": resumed,
        "held_out": [{name: entry[name] for name in ("step", *names)} for entry in held_out],
    }


def architecture(sizes: Sizes, vocab_size: int) -> dict[str, Any]:
    """The config: weights of such narrow layers begin larger than BERT-base's, and data
    read so few times need no dropout."""
    return {
        "model_type": "bert",
        "vocab_size": vocab_size,
        "hidden_size": sizes.hidden_size,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.hidden_size // 32,
        "intermediate_size": 4 * sizes.hidden_size,
        "hidden_dropout_prob": 0,
        "attention_probs_dropout_prob": 0,
        "initializer_range": 0.05,
    }


def run_and_kill(command: Sequence[object], output: Path, step: int) -> int:
    """Runs a pre-training until its log passes a step, kills it, and returns the logged step."""
    with subprocess.Popen([COMMAND, *announced(command)]) as process:
        while process.poll() is None:
            reached = max((entry["step"] for entry in read_log(output)), default=0)
            # There is a checkpoint to resume from.
            if reached > step and last_checkpoint(output) is not None:
                process.kill()
                return reached
            time.sleep(LOOK_SECONDS)
    if process.returncode:
        raise typer.Exit(process.returncode)
    raise InputError("pre-training ended before it was killed. Expected more steps. Raise them.")


def read_log(output: Path) -> list[dict[str, Any]]:
    """The whole lines of a run's log, as far as it is written."""
    file = output / LOG
    if not file.exists():
        return []
    *lines, _ = file.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines]


def sentiment(
    labelled: Path, test: Path, output: Path, sizes: Sizes, start: str | None
) -> dict[str, Any]:
    """Fine-tunes from the pre-trained model, the published one and random weights, and
    returns the accuracies."""
    starts: dict[str, dict[str, Any]] = {}
    for seed in sizes.seeds:
        nothing = write_random(output / "bert", output / f"nothing-{seed}", seed)
        for name, model, epochs in (
            ("the pre-trained model", output / "bert", sizes.epochs),
            ("the published model", start, sizes.epochs),
            ("nothing", nothing, sizes.epochs_from_nothing),
        ):
            if model is None:
                continue
            made = output / f"sentiment-from-{name.replace(' ', '-')}-seed-{seed}"
            hf_bert(
                *("finetune", model, labelled, "--task", "classification"),
                *("--test", test, "--column", "review", "--label-column", "sentiment"),
                *("--max-length", sizes.max_length, "--epochs", epochs),
                *("--batch-size", sizes.batch_size, "--learning-rate", sizes.finetuning_rate),
                *("--seed", seed, "--output", made, "--quiet"),
            )
            metrics = json.loads((made / "metrics.json").read_text(encoding="utf-8"))
            found = starts.setdefault(name, {"epochs": epochs, "accuracies": []})
            found["accuracies"].append(metrics["test"]["accuracy"])
    counted = counted_words(labelled, test)
    for found in starts.values():
        found |= spread(found["accuracies"])
    rows = [
        [
            f"BERT from {name}",
            str(found["epochs"]),
            *(f"{value:.1%}" for value in found["accuracies"]),
            f"{found['mean']:.1%} ± {100 * found['std']:.1f}",
        ]
        for name, found in starts.items()
    ]
    empty = [""] * (1 + len(sizes.seeds))
    rows.append(["counted words, logistic regression", *empty, f"{counted:.1%}"])
    print_table(
        console(),
        f"Sentiment of {sizes.test} reviews, learnt from {sizes.labelled}: accuracy, and the "
        "standard deviation over seeds",
        ["", "epochs", *(f"seed {seed}" for seed in sizes.seeds), "mean"],
        rows,
    )
    return starts | {"counted words": counted}


def write_random(like: Path, folder: Path, seed: int) -> Path:
    """Saves a model with the architecture and tokenizer of another, and random weights."""
    set_seed(seed)
    BertModel(BertConfig.from_pretrained(like)).save_pretrained(folder)
    BertTokenizer.from_pretrained(like).save_pretrained(folder)
    return folder


def counted_words(labelled: Path, test: Path) -> float:
    """The accuracy of a logistic regression on tf-idf of whole reviews."""
    parts = []
    for file in (labelled, test):
        rows = [row.values for row in read_rows(file, COLUMNS)]
        parts.append(([without_breaks(text) for text, _ in rows], [label for _, label in rows]))
    model = make_pipeline(TfidfVectorizer(sublinear_tf=True, min_df=2), LogisticRegression(C=10))
    return float(model.fit(*parts[0]).score(*parts[1]))


def hf_bert(*words: object) -> None:
    """Shows a command and runs it in this process, which saves its start."""
    status = cli.main(announced(words))
    if status:
        raise typer.Exit(status)


def announced(words: Sequence[object]) -> list[str]:
    """The words of a command, after it was shown."""
    found = [str(word) for word in words]
    print(f"$ {shlex.join(['hf-bert', *found])}", flush=True)
    return found


if __name__ == "__main__":
    typer.run(main)
