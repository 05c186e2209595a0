"""Miniature data of all of SentEval's tasks, in its own layout; every text is a vector in words."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hf_bert_impl.tasks.senteval_files import TASKS, SimilarityTask

#: Numbers of a text.
SIZE = 6


def text(vector: np.ndarray) -> str:
    return " ".join(f"{number:.3f}" for number in vector)


def batcher(params: object, batch: list[list[str]]) -> list[list[float]]:
    """The numbers that a text consists of as its vector; an empty one is zero."""
    return [[float(word) for word in words] or [0.0] * SIZE for words in batch]


def points(rng: np.random.Generator, count: int, classes: int) -> tuple[list[str], list[int]]:
    """Vectors and the classes that they tell, with some noise."""
    vectors = rng.normal(size=(count, SIZE))
    kinds = (vectors[:, :classes] + rng.normal(scale=0.5, size=(count, classes))).argmax(axis=1)
    kinds[:classes] = range(classes)  # none is missing
    return [text(vector) for vector in vectors], kinds.tolist()


def pairs(rng: np.random.Generator, count: int) -> list[tuple[str, str, float]]:
    """Pairs and scores from 0 to 1 that tell how near they are."""
    left = rng.normal(size=(count, SIZE))
    right = left + rng.uniform(0, 2, size=(count, 1)) * rng.normal(size=(count, SIZE))
    cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    return list(zip(map(text, left), map(text, right), np.abs(cosines).tolist(), strict=True))


def write_senteval(folder: Path) -> Path:
    """Writes `downstream` with all tasks into a folder; gives `downstream`."""
    rng = np.random.default_rng(3)
    place = folder / "downstream"

    def write(name: str, lines: list[str], encoding: str = "utf-8", end: str = "\n") -> None:
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes("".join(line + end for line in lines).encode(encoding))

    for task, names in {
        "MR": ("rt-polarity.neg", "rt-polarity.pos"),
        "CR": ("custrev.neg", "custrev.pos"),
        "SUBJ": ("subj.objective", "subj.subjective"),
        "MPQA": ("mpqa.neg", "mpqa.pos"),
    }.items():
        texts, kinds = points(rng, 60, 2)
        for number, name in enumerate(names):
            chosen = [it for it, kind in zip(texts, kinds, strict=True) if kind == number]
            write(f"{task}/{name}", chosen, "latin-1")
    parts = {"train": 90, "dev": 25, "test": 31}
    for part, count in parts.items():
        texts, kinds = points(rng, count, 2)
        lines = [f"{it}\t{kind}" for it, kind in zip(texts, kinds, strict=True)]
        write(f"SST/binary/sentiment-{part}", lines)
        texts, kinds = points(rng, count, 5)
        lines = [f"{kind} {it}" for it, kind in zip(texts, kinds, strict=True)]
        write(f"SST/fine/sentiment-{part}", lines)
        triples = pairs(rng, count)
        labels = ["contradiction", "neutral", "entailment"]
        write(f"SNLI/s1.{part}", [left for left, _, _ in triples])
        write(f"SNLI/s2.{part}", [right for _, right, _ in triples])
        write(f"SNLI/labels.{part}", [labels[round(2 * score)] for _, _, score in triples])
        write(
            f"STS/STSBenchmark/sts-{part}.csv",
            [
                f"main\tcaptions\t2012\t{n}\t{5 * score:.3f}\t{left}\t{right}\tlicence"
                for n, (left, right, score) in enumerate(pairs(rng, count))
            ],
        )
    for name, count in (("train_5500", 70), ("TREC_10", 20)):
        texts, kinds = points(rng, count, 3)
        codes = ("ABBR:exp", "HUM:ind", "NUM:date")
        lines = [f"{codes[kind]} {it}" for it, kind in zip(texts, kinds, strict=True)]
        write(f"TREC/{name}.label", lines, "latin-1")
    for name, count in (("train", 80), ("test", 30)):
        lines = [
            f"{round(score)}\t{n}\t{n + 1}\t{left}\t{right}"
            for n, (left, right, score) in enumerate(pairs(rng, count))
        ]
        header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
        write(f"MRPC/msr_paraphrase_{name}.txt", ["\ufeff" + header, *lines], end="\r\n")
    for name, count in (("train", 90), ("trial", 25), ("test_annotated", 31)):
        judgments = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
        lines = [
            f"{n}\t{left}\t{right}\t{1 + 4 * score:.2f}\t{judgments[round(2 * score)]}"
            for n, (left, right, score) in enumerate(pairs(rng, count))
        ]
        header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
        write(f"SICK/SICK_{name}.txt", [header, *lines])
    for known in TASKS.values():
        if isinstance(known, SimilarityTask):
            for number, name in enumerate(known.files):
                triples = pairs(rng, 12 + 5 * number)
                gold = [f"{5 * score:.2f}" for _, _, score in triples]
                gold[3] = ""  # an unscored pair
                inputs = [f"{left}\t{right}" for left, right, _ in triples]
                write(f"{known.folder}/STS.input.{name}.txt", inputs)
                write(f"{known.folder}/STS.gs.{name}.txt", gold)
    return place
