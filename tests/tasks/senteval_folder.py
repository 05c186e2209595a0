"""Miniature data of all of SentEval's tasks, in its own layout; every text is a vector in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hf_bert_impl.tasks.senteval_files import TASKS, SimilarityTask

#: Numbers of a text.
SIZE = 6
#: Examples by part.
COUNTS = {"train": 90, "validation": 25, "test": 31}
#: Classes and the line of an example; SNLI has a file for each field.
LINES = {
    "SST2": (2, "{left}\t{label}"),
    "SST5": (5, "{label} {left}"),
    "TREC": (3, "{code} {left}"),
    "MRPC": (2, "{paraphrase}\t1\t2\t{left}\t{right}"),
    "SNLI": (3, "{left}\t{right}\t{judgment}"),
    "SICK-E": (3, "1\t{left}\t{right}\t{relatedness:.2f}\t{judgment}"),
    "STS-B": (2, "main\tcaptions\t2012\t1\t{similarity:.3f}\t{left}\t{right}\tlicence"),
}
HEADERS = {
    "MRPC": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "SICK-E": "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment",
}
CODES = ("ABBR:exp", "HUM:ind", "NUM:date", "", "")
JUDGMENTS = ("contradiction", "neutral", "entailment")


def batcher(params: object, batch: list[list[str]]) -> list[list[float]]:
    """The numbers that a text consists of as its vector; an empty one is zero."""
    return [[float(word) for word in words] or [0.0] * SIZE for words in batch]


def examples(rng: np.random.Generator, count: int, classes: int) -> list[dict[str, Any]]:
    """Pairs of vectors as texts, with classes of the left one and scores, both with some noise."""
    left = rng.normal(size=(count, SIZE))
    right = left + rng.uniform(0, 2, size=(count, 1)) * rng.normal(size=(count, SIZE))
    cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    kinds = (left[:, :classes] + rng.normal(scale=0.5, size=(count, classes))).argmax(axis=1)
    kinds[:classes] = range(classes)  # none is missing
    return [
        {
            "left": " ".join(f"{number:.3f}" for number in left[n]),
            "right": " ".join(f"{number:.3f}" for number in right[n]),
            "label": kinds[n],
            "code": CODES[kinds[n]],
            "paraphrase": round(score),
            "judgment": JUDGMENTS[round(2 * score)],
            "relatedness": 1 + 4 * score,
            "similarity": 5 * score,
        }
        for n, score in enumerate(np.abs(cosines).tolist())
    ]


def write_senteval(folder: Path) -> Path:
    """Writes `downstream` with all tasks into a folder; gives `downstream`."""
    rng, place = np.random.default_rng(3), folder / "downstream"

    def write(name: str, lines: list[str], end: str = "\n") -> None:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes("".join(line + end for line in lines).encode())

    for name, task in TASKS.items():
        if isinstance(task, SimilarityTask):
            for number, file in enumerate(task.files):
                rows = examples(rng, 12 + 5 * number, 2)
                gold = [f"{row['similarity']:.2f}" for row in rows]
                gold[3] = ""  # an unscored pair
                write(f"{task.folder}/STS.gs.{file}.txt", gold)
                pairs = [f"{row['left']}\t{row['right']}" for row in rows]
                write(f"{task.folder}/STS.input.{file}.txt", pairs)
        elif name in LINES:
            classes, line = LINES[name]
            for part, *files in task.files:
                rows = examples(rng, COUNTS[part], classes)
                lines = [line.format(**row) for row in rows]
                columns = [[HEADERS[name], *lines]] if name in HEADERS else [lines]
                if len(files) > 1:
                    columns = [[row.split("\t")[n] for row in lines] for n in range(len(files))]
                for file, column in zip(files, columns, strict=True):
                    write(f"{task.folder}/{file}", column, "\r\n" if name == "MRPC" else "\n")
        elif name != "SICK-R":  # has the files of SICK-E
            rows = examples(rng, 60, 2)
            for number, (_, file) in enumerate(task.files):
                texts = [row["left"] for row in rows if row["label"] == number]
                write(f"{task.folder}/{file}", texts)
    return place
