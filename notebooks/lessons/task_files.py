"""The labelled data of a lesson as files, in the amount that its running time allows.

Each function finds the real data (`data.find`), draws a sample and writes it in the same format,
for the package's readers.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_bert_impl.data.documents import read_documents
from hf_bert_impl.data.sentence_splitter import split_sentences

from . import data, samples

#: Seeds of the drawn rows of real files, and of generated files.
_SEEDS = {"train": 1, "dev": 2}


@dataclass(frozen=True)
class TaskFiles:
    """Two files in one format."""

    train: str
    dev: str


def sentiment(folder: Path, train: int, dev: int) -> TaskFiles:
    """SST-2: `text TAB label`, without a header.

    Args:
        folder: Where to write.
        train: Maximum number of training sentences.
        dev: Maximum number of validation sentences.

    Returns:
        The files.
    """
    return _lines("sst2", "tsv", folder, (train, dev), samples.sentiment)


def entailment(folder: Path, train: int, dev: int) -> TaskFiles:
    """SICK: a header, then lines of two sentences, a relatedness and a judgment."""
    return _lines("sick", "txt", folder, (train, dev), samples.entailment, header=True)


def tagging(folder: Path, train: int, dev: int) -> TaskFiles:
    """WNUT 2017: lines of a word and its tag, with a blank line after each sentence."""
    return _lines("wnut17", "conll", folder, (train, dev), samples.tagging, blocks=True)


def sentence_questions(
    folder: Path, train: int, dev: int, *, without_answer: float = 0.5
) -> TaskFiles:
    """SQuAD's answerable questions, each with one sentence instead of the paragraph.

    A question gets the sentence with its answer, or another sentence of the same paragraph. In the
    second case, it has no answer.

    Args:
        folder: The output folder, created if missing.
        train: Maximum number of training questions.
        dev: Maximum number of validation questions.
        without_answer: The share of questions that get another sentence, 0 to 1.
    """

    def change(paragraph: dict[str, Any], draw: random.Random) -> list[dict[str, Any]]:
        return _by_sentence(paragraph, draw, without_answer)

    folder.mkdir(exist_ok=True)
    return _squad(folder, (train, dev), change)


def similarity(folder: Path, pairs: int) -> Path:
    """STS 2014: lines of a score and two sentences, with a file for each source.

    Args:
        folder: Where to write.
        pairs: Maximum number of pairs.

    Returns:
        The folder of the files.
    """
    real, target = data.find("sts/2014"), folder / "sts"
    target.mkdir()
    if real is None:
        samples.similarity(target / "generated.tsv", pairs, seed=1)
        return target
    files = sorted(real.glob("*.tsv"))
    for file in files:
        rows = file.read_text(encoding="utf-8").strip("\n").split("\n")
        kept = _draw(rows, pairs // len(files), seed=1)
        (target / file.name).write_text("\n".join(kept) + "\n", encoding="utf-8")
    return target


def captions(folder: Path, train: int, held_out: int) -> TaskFiles:
    """SICK's training pairs, sentences that describe pictures, as documents of two sentences.

    SICK repeats sentences. Training documents with a held-out sentence are removed, so the result
    may have fewer than `train`.

    Args:
        folder: Where to write.
        train: Maximum number of training pairs.
        held_out: Maximum number of validation pairs.

    Returns:
        The files, in the layout "sentences".
    """
    most = train + held_out
    drawn = _lines("sick", "txt", folder, (most, 0), samples.entailment, header=True).train
    rows = Path(drawn).read_text(encoding="utf-8").splitlines()[1:]
    pairs = [tuple(row.split("\t")[1:3]) for row in rows]
    random.Random(0).shuffle(pairs)
    judged, others = pairs[:held_out], pairs[held_out:]
    reserved = {sentence.lower() for pair in judged for sentence in pair}
    others = [pair for pair in others if reserved.isdisjoint(map(str.lower, pair))]
    files = TaskFiles(str(folder / "captions-train.txt"), str(folder / "captions-dev.txt"))
    for file, kept in ((files.train, others[:train]), (files.dev, judged)):
        text = "\n".join(f"{first} .\n{second} .\n" for first, second in kept)
        Path(file).write_text(text, encoding="utf-8")
    return files


def articles(folder: Path, most: int | None = None) -> Path:
    """WikiText-2's validation articles as prose, a blank line between them.

    Marks of the corpus become text: `@-@` a hyphen, and `<unk>`, a rare word, the tokenizer's
    `[UNK]`.

    Args:
        folder: Where to write.
        most: Maximum number of articles; None for all.

    Returns:
        The file, in the layout "paragraphs".
    """
    source, target = data.find("wikitext2/valid.txt"), folder / "articles.txt"
    if source is None:
        source = folder / "generated-articles.txt"
        samples.articles(source, most or 60, seed=1)
    documents = itertools.islice(read_documents([source], "wikitext"), most)
    prose = ["\n".join(map(_prose, document)) for document in documents]
    target.write_text("\n\n".join(prose) + "\n", encoding="utf-8")
    return target


def _prose(text: str) -> str:
    for mark, plain in (("<unk>", "[UNK]"), (" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", ".")):
        text = text.replace(mark, plain)
    return text


def _by_sentence(
    paragraph: dict[str, Any], draw: random.Random, without_answer: float
) -> list[dict[str, Any]]:
    sentences = split_sentences(paragraph["context"])
    found = []
    for row in paragraph["qas"]:
        texts = list(dict.fromkeys(answer["text"] for answer in row["answers"]))
        holding = [text for text in sentences if texts and texts[0] in text]
        others = [text for text in sentences if not any(answer in text for answer in texts)]
        is_impossible = draw.random() < without_answer
        if not texts or not (others if is_impossible else holding):
            continue
        sentence = draw.choice(others) if is_impossible else holding[0]
        answers = [
            {"text": text, "answer_start": sentence.index(text)}
            for text in texts
            if text in sentence
        ]
        changed = {"answers": answers, "is_impossible": is_impossible}
        found.append({"context": sentence, "qas": [row | changed]})
    return found


def _lines(
    name: str,
    ending: str,
    folder: Path,
    counts: tuple[int, int],
    generate: Callable[[Path, int, int], None],
    *,
    header: bool = False,
    blocks: bool = False,
) -> TaskFiles:
    """Draws rows at random: lines of a table, or blocks that blank lines separate."""
    real = data.find(name)
    files = []
    for (part, seed), count in zip(_SEEDS.items(), counts, strict=True):
        file = folder / f"{name}-{part}.{ending}"
        files.append(str(file))
        if real is None:
            generate(file, count, seed)
            continue
        text = (real / f"{part}.{ending}").read_text(encoding="utf-8").strip()
        first, rows = [], text.split("\n\n" if blocks else "\n")
        if header:
            first, rows = rows[:1], rows[1:]
        end = "\n\n" if blocks else "\n"
        kept = [*first, *_draw(rows, count, seed)]
        file.write_text(end.join(kept) + end, encoding="utf-8")
    return TaskFiles(*files)


def _squad(
    folder: Path,
    counts: tuple[int, int],
    change: Callable[[dict[str, Any], random.Random], list[dict[str, Any]]],
) -> TaskFiles:
    """Draws changed paragraphs at random until there are enough questions."""
    real = data.find("squad_v2")
    files = []
    for (part, seed), count in zip(_SEEDS.items(), counts, strict=True):
        file = folder / f"squad-{part}.json"
        files.append(str(file))
        source = folder / "generated.json"
        if real is None:
            # Twice as many, because a change may drop the third without an answer.
            samples.questions(source, 2 * count, seed)
        else:
            source = real / f"{part}.json"
        content = json.loads(source.read_text(encoding="utf-8"))
        draw = random.Random(seed)
        every = [
            paragraph
            for article in content["data"]
            for original in article["paragraphs"]
            for paragraph in change(original, draw)
        ]
        draw.shuffle(every)
        taken, left = [], count
        for paragraph in every:
            rows = paragraph["qas"][:left]
            left -= len(rows)
            if rows:
                taken.append(paragraph | {"qas": rows})
        article = {"title": part, "paragraphs": taken}
        file.write_text(json.dumps({"version": "v2.0", "data": [article]}), encoding="utf-8")
    return TaskFiles(*files)


def _draw(rows: Sequence[str], count: int, seed: int) -> list[str]:
    """Draws rows at random, in their original order."""
    rows = list(rows)
    if len(rows) <= count:
        return rows
    return [rows[place] for place in sorted(random.Random(seed).sample(range(len(rows)), count))]
