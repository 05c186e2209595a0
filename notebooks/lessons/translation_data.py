"""Sentence pairs to translate: cmn_eng (Tatoeba) or, without it, pairs of a toy grammar."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from . import data
from .vocabulary import Vocabulary, pad, split_chinese, split_english


@dataclass(frozen=True)
class Pair:
    """One sentence in two languages."""

    #: Tokens of the language that is read.
    source: tuple[str, ...]
    #: Tokens of the language that is written.
    target: tuple[str, ...]


@dataclass(frozen=True)
class TranslationData:
    """Pairs to learn from and pairs to test on, with the vocabularies of both languages."""

    #: Pairs to learn from.
    train: list[Pair]
    #: Pairs without a sentence of `train`.
    test: list[Pair]
    #: Vocabulary of the language that is read.
    source: Vocabulary
    #: Vocabulary of the language that is written.
    target: Vocabulary
    #: True for generated sentences.
    generated: bool

    def reversed(self) -> TranslationData:
        """The same pairs for the other direction."""

        def swap(pairs: list[Pair]) -> list[Pair]:
            return [Pair(pair.target, pair.source) for pair in pairs]

        return TranslationData(
            swap(self.train), swap(self.test), self.target, self.source, self.generated
        )


def load_chinese_to_english(
    *,
    longest: int = 10,
    at_least: int = 3,
    test_size: int = 500,
    keep_rare: bool = False,
) -> TranslationData:
    """Chinese sentences with their English translation.

    Args:
        longest: Maximum number of English tokens; Chinese sentences may have 1.6 times this
            number.
        at_least: Minimum number of occurrences of each token. Pairs with rarer tokens are removed,
            because a small network cannot learn a word from one example.
        test_size: Number of test pairs.
        keep_rare: True keeps pairs with rare tokens, and replaces these tokens by `UNKNOWN`.

    Returns:
        The pairs. Test sentences do not occur in training, in either language.
    """
    file = data.find("cmn_eng/cmn.txt")
    if file is None:
        pairs = list(_toy_pairs())
    else:
        lines = file.read_text(encoding="utf-8").splitlines()
        texts = (line.split("\t") for line in lines)
        pairs = [Pair(tuple(split_chinese(zh)), tuple(split_english(en))) for en, zh in texts]
    pairs = [
        pair
        for pair in dict.fromkeys(pairs)
        if len(pair.target) <= longest and len(pair.source) <= 1.6 * longest
    ]
    if not keep_rare:
        pairs = _common(pairs, at_least)
    train, test = _split(pairs, test_size, random.Random(0))
    # Pairs with rare tokens are already gone, so every token that is left gets a number.
    minimum = at_least if keep_rare else 1
    source = Vocabulary((pair.source for pair in pairs), minimum)
    target = Vocabulary((pair.target for pair in pairs), minimum)
    return TranslationData(train, test, source, target, generated=file is None)


def batches(
    pairs: Sequence[Pair],
    source: Vocabulary,
    target: Vocabulary,
    size: int,
    rng: random.Random | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of sentences of similar length, with little padding.

    Args:
        pairs: The sentences.
        source: Numbers the tokens to read.
        target: Numbers the tokens to write.
        size: Pairs per batch.
        rng: Shuffles the pairs and the batches. Without it, they come in the order of length.

    Yields:
        Tokens to read (B, S) and to write (B, T).
    """
    pairs = list(pairs)
    if rng is not None:
        rng.shuffle(pairs)
    # The sort is stable, so sentences of one length stay shuffled.
    pairs.sort(key=lambda pair: (len(pair.target), len(pair.source)))
    groups = [pairs[start : start + size] for start in range(0, len(pairs), size)]
    if rng is not None:
        rng.shuffle(groups)
    for group in groups:
        yield (
            pad([source.encode(pair.source) for pair in group]),  # (B, S)
            pad([target.encode(pair.target) for pair in group]),  # (B, T)
        )


def references(pairs: Sequence[Pair], everything: Sequence[Pair]) -> list[list[tuple[str, ...]]]:
    """All known translations of each pair's source, its own first.

    Args:
        pairs: N pairs.
        everything: The pairs to search for further translations.

    Returns:
        N lists of tokenised sentences.
    """
    known: defaultdict[tuple[str, ...], list[tuple[str, ...]]] = defaultdict(list)
    for pair in everything:
        known[pair.source].append(pair.target)
    return [list(dict.fromkeys([pair.target, *known[pair.source]])) for pair in pairs]


def _common(pairs: list[Pair], at_least: int) -> list[Pair]:
    """Pairs whose tokens all occur `at_least` times."""
    source = Counter(token for pair in pairs for token in pair.source)
    target = Counter(token for pair in pairs for token in pair.target)
    return [
        pair
        for pair in pairs
        if all(source[token] >= at_least for token in pair.source)
        and all(target[token] >= at_least for token in pair.target)
    ]


def _split(pairs: list[Pair], test_size: int, rng: random.Random) -> tuple[list[Pair], list[Pair]]:
    """Shuffles, takes the test from the end, and drops training pairs that share its sentences."""
    pairs = list(pairs)
    rng.shuffle(pairs)
    train, test = pairs[:-test_size], pairs[-test_size:]
    sources = {pair.source for pair in test}
    targets = {pair.target for pair in test}
    train = [pair for pair in train if pair.source not in sources and pair.target not in targets]
    return train, test


def _toy_pairs() -> Iterator[Pair]:
    """A grammar whose languages order their words differently, as Chinese and English do."""
    subjects = {"我": "i", "你": "you", "他": "he", "她": "she", "我们": "we", "他们": "they"}
    verbs = {"喝": "drank", "买": "bought", "卖": "sold", "看": "saw", "要": "wanted"}
    things = {"水": "water", "茶": "tea", "书": "books", "花": "flowers", "车": "cars"}
    times = {"今天": "today", "昨天": "yesterday", "早上": "this morning", "": ""}
    places = {"在家": "at home", "在学校": "at school", "在这里": "here", "": ""}
    for words in itertools.product(*(d.items() for d in (subjects, verbs, things, times, places))):
        subject, verb, thing, time, place = words
        chinese = f"{time[0]}{subject[0]}{place[0]}{verb[0]}了{thing[0]}。"
        english = f"{subject[1]} {verb[1]} {thing[1]} {place[1]} {time[1]}."
        yield Pair(tuple(split_chinese(chinese)), tuple(split_english(english)))
