"""The texts of the cases that begin with text, and those that a quantisation is calibrated on."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoTokenizer

from hf_bert_impl.benchmark import cases
from hf_bert_impl.benchmark.cases import Unavailable
from hf_bert_impl.benchmark.models import Entry
from hf_bert_impl.data.squad import read_squad
from hf_bert_impl.measuring.batches import TEXT_ROWS, log_normal_lengths, make_batch
from hf_bert_impl.tasks.sts import StsFile, read_sts

Batch = dict[str, Tensor]

#: How many texts a static quantisation looks at. Each is a batch of its own.
CALIBRATION_TEXTS = 300


def sentences(number: int) -> tuple[list[str], str]:
    """Mixed sentences for `encode`, short reviews among lines of articles.

    Returns:
        The sentences and where they come from: the SST-2 and WikiText-2 files in the folder that
        HF_BERT_DATA names, alternating, or made-up words of log-normal numbers.
    """
    draw = random.Random(0)
    if real := _real_sentences():
        draw.shuffle(real)
        # A file that is too short is read again from its beginning.
        return [real[index % len(real)] for index in range(number)], "SST-2 and WikiText-2"
    lengths = log_normal_lengths(number, 3.0, 0.8, 2, 200)
    words = ["the", "river", "rose", "over", "night", "and", "music", "market", "window", "paper"]
    texts = [" ".join(draw.choice(words) for _ in range(length)) for length in lengths]
    return texts, "made-up sentences (HF_BERT_DATA is not set)"


def _data(pattern: str) -> list[Path]:
    """What there is of a kind in the folder that HF_BERT_DATA names; nothing without it."""
    named = os.environ.get("HF_BERT_DATA")
    return sorted(Path(named).glob(pattern)) if named else []


def _lines(pattern: str) -> Iterator[str]:
    for file in _data(pattern):
        lines = file.read_text(encoding="utf-8").splitlines()
        yield from (line for line in lines if line.strip())


def _real_sentences() -> list[str]:
    reviews = [line.rpartition("\t")[0] or line for line in _lines("sst2/*.tsv")]
    # Headings are written between equals signs.
    articles = [line.strip() for line in _lines("wikitext2/*.txt") if "= " not in line[:3]]
    if not reviews or not articles:
        return reviews or articles
    pairs = zip(reviews, articles, strict=False)
    return [text for pair in pairs for text in pair]


def origin(case: str) -> str:
    """Where the texts of a case of `cases.FROM_TEXT` come from."""
    if case == "dense":
        with contextlib.suppress(Unavailable):
            return f"STS 2014 and 2012, {len(sts_texts([*sts(2014), *sts(2012)]))} sentences"
    elif case not in ("encode", "dense") and _squad()[0]:
        return "SQuAD"
    return sentences(1)[1]


def sts(year: int, pairs: int | None = None) -> list[StsFile]:
    """The pairs of a year of STS.

    Args:
        year: Of the folder `sts/YEAR` in the one that HF_BERT_DATA names.
        pairs: How many of each source at most; None for all.

    Raises:
        Unavailable: There is no such folder.
    """
    found = [it for folder in _data(f"sts/{year}") for it in read_sts(folder)]
    if not found:
        raise Unavailable(f"needs STS {year}: HF_BERT_DATA names no folder with sts/{year}")
    return [StsFile(it.name, it.gold[:pairs], it.pairs[:pairs]) for it in found]


def sts_texts(files: Sequence[StsFile]) -> list[str]:
    """Every text of these pairs once, in order."""
    return list(dict.fromkeys(text for file in files for pair in file.pairs for text in pair))


def sts_sentences(number: int) -> list[str]:
    """Sentences of STS 2014 and 2012, each once, then again from the first.

    Returns:
        The sentences; those of `sentences` where HF_BERT_DATA names no folder with STS.
    """
    try:
        found = sts_texts([*sts(2014), *sts(2012)])
    except Unavailable:
        return sentences(number)[0]
    return [found[index % len(found)] for index in range(number)]


def passages(number: int, tokenizer: Any) -> list[str]:
    """Passages as a search engine finds them, of `cases.PASSAGE_TOKENS` tokens.

    The running text is that of SQuAD's paragraphs, in order. A passage is its next words, as many
    as reach a length that is drawn uniformly. For a model with fewer positions lengths shrink.

    Args:
        number: How many.
        tokenizer: Counts the tokens of a word; its limit is that of the model.

    Returns:
        The passages. Where HF_BERT_DATA names no folder with SQuAD the text is that of `sentences`.
    """
    words = " ".join(_squad()[0] or sentences(2000)[0]).split()
    vocabulary = list(dict.fromkeys(words))
    counted = tokenizer(vocabulary, add_special_tokens=False)["input_ids"]
    tokens = {word: len(ids) for word, ids in zip(vocabulary, counted, strict=True)}
    least, greatest = cases.PASSAGE_TOKENS
    shrunk = min(1.0, tokenizer.model_max_length / cases.POSITIONS)
    draw, place, found = random.Random(0), 0, []
    for _ in range(number):
        wanted, taken = round(shrunk * draw.randint(least, greatest)), [""]
        while wanted > 0:
            taken.append(words[place % len(words)])
            wanted -= tokens[taken[-1]]
            place += 1
        found.append(" ".join(taken[1:]))
    return found


def with_questions(found: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs as a re-ranker gets them: each part of the passages belongs to one short question.

    Questions are those of SQuAD with 4 to 12 words; without SQuAD they are a passage's first words.
    """
    asked = [text for text in _squad()[1] if 4 <= len(text.split()) <= 12]
    asked = random.Random(0).sample(asked, min(len(asked), cases.PARTS))
    asked = asked or [" ".join(text.split()[:8]) for text in found[: cases.PARTS]]
    return [(asked[index % len(asked)], text) for index, text in enumerate(found)]


def _squad() -> tuple[list[str], list[str]]:
    """Paragraphs and questions of SQuAD in the folder that HF_BERT_DATA names; none without it."""
    files = _data("squad_v2/*.json")
    questions = [it for file in files for it in read_squad(file, check_places=False).questions]
    return list(dict.fromkeys(it.context for it in questions)), [it.text for it in questions]


def text_batches(entry: Entry, texts: list[str], rows: int = TEXT_ROWS) -> list[Batch]:
    """Texts as they come, in padded batches: `input_ids` and `attention_mask`, (rows, S) each.

    Raises:
        Unavailable: The model has no tokenizer.
    """
    folder = entry.source.sentence_folder(entry.scratch)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    longest = min(tokenizer.model_max_length, entry.source.config().max_position_embeddings)
    batches = []
    for start in range(0, len(texts), rows):
        encoded = tokenizer(
            texts[start : start + rows],
            truncation=True,
            max_length=longest,
            padding=True,
            return_tensors="pt",
        )
        given = {name: encoded[name] for name in ("input_ids", "attention_mask")}
        batches.append({name: value.to(entry.source.device) for name, value in given.items()})
    return batches


def calibration_batches(entry: Entry) -> Iterable[Batch]:
    """What a static quantisation looks at: other texts than those that it is judged by.

    Returns:
        Texts of STS 2012, one a batch; random ids of log-normal lengths where there are none.
    """
    try:
        if entry.source.path is None:
            raise Unavailable("random weights have no use for real texts")
        texts = sts_texts(sts(2012))
        step = max(1, len(texts) // CALIBRATION_TEXTS)
        return text_batches(entry, texts[::step][:CALIBRATION_TEXTS], rows=1)
    except Unavailable:
        config = entry.source.config()
        drawn = cases.make_case("short", CALIBRATION_TEXTS, config.max_position_embeddings)
        together = make_batch(drawn, config.vocab_size)
        return [
            {name: value[row : row + 1, :length] for name, value in together.items()}
            for row, length in enumerate(drawn.lengths)
        ]
