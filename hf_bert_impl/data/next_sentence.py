"""Next-sentence pairs, as Google's `create_pretraining_data.py` makes them.

A document's sentences are gathered until they reach a target length, and the chunk is cut into A
and B. Half of the time B is replaced by text of another document, and the sentences of B begin the
next chunk instead. Most targets are the full length. A share of `short_seq_prob` is drawn at
random, so that the model is trained on short input too. A pair that is too long is cut at both
ends.

One difference: a chunk of one sentence has no B, so it always gets a random one. In Google's data
this makes random pairs the majority. Here another random pair is made true for each of them.

With `given`, the text comes in pairs. Each is an example, or its first sentence with the second of
another pair.
"""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hf_bert_impl.data.tokenized_documents import TokenizedDocument
from hf_bert_impl.errors import InputError

#: [CLS] and two [SEP].
PAIR_SPECIAL_TOKENS = 3
SHORTEST_TARGET = 2


class SentencePair(NamedTuple):
    """Two segments without special tokens, and whether the second is from another document."""

    first: list[int]
    second: list[int]
    is_random: bool


def make_pairs(
    documents: Sequence[TokenizedDocument],
    indices: Sequence[int],
    rng: random.Random,
    *,
    max_length: int,
    short_seq_prob: float = 0.1,
    given: bool = False,
) -> Iterator[SentencePair]:
    """Cuts documents into pairs.

    Args:
        documents: All documents, for random partners; none is empty.
        indices: The documents to cut, in this order.
        rng: The only source of randomness.
        max_length: Maximum tokens of a pair with its three special tokens.
        short_seq_prob: The probability that a document's target length is drawn at random.
        given: Each document is a pair of sentences, and is not cut.

    Yields:
        Pairs with at least one token per side and at most `max_length - 3` in total.

    Raises:
        ValueError: There are fewer than two documents, or `max_length` is too small.
    """
    if len(documents) < 2:
        raise InputError(
            "next-sentence pairs need text from other documents, and there is only one. Give at "
            "least 2 documents, or use `objective='mlm'`.",
            "objective='mlm'",
        )
    room = max_length - PAIR_SPECIAL_TOKENS
    if room < SHORTEST_TARGET:
        raise InputError(
            f"max_length={max_length} is too short for two segments and 3 special tokens. "
            f"Use at least {PAIR_SPECIAL_TOKENS + SHORTEST_TARGET}.",
            "max_length",
        )
    balance = _Balance(rng)
    for index in indices:
        if given:
            yield _given(documents, index, room, balance, rng)
            continue
        is_short = rng.random() < short_seq_prob
        target = rng.randint(SHORTEST_TARGET, room) if is_short else room
        yield from _cut(documents, index, target, room, balance, rng)


class _Balance:
    """Decides which pairs are random: half of them, pairs without a true partner included."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._forced = 0

    def is_random(self, can_be_true: bool) -> bool:
        drawn = self._rng.random() < 0.5
        if not can_be_true:
            self._forced += not drawn
            return True
        if drawn and self._forced:
            self._forced -= 1
            return False
        return drawn


def _given(
    documents: Sequence[TokenizedDocument],
    index: int,
    room: int,
    balance: _Balance,
    rng: random.Random,
) -> SentencePair:
    """The pair that a document is, or its first sentence with another document's second."""
    document = documents[index]
    # A document has one sentence where the tokenizer has no token for the other.
    first, is_random = document.tokens(0, 1), balance.is_random(can_be_true=len(document) > 1)
    other = _another(documents, index, rng) if is_random else document
    second = other.tokens(len(other) - 1, len(other))
    _truncate(first, second, room, rng)
    return SentencePair(first, second, is_random)


def _another(
    documents: Sequence[TokenizedDocument], index: int, rng: random.Random
) -> TokenizedDocument:
    """Any document but this one."""
    drawn = rng.randrange(len(documents) - 1)
    return documents[drawn + (drawn >= index)]


def _cut(
    documents: Sequence[TokenizedDocument],
    index: int,
    target: int,
    room: int,
    balance: _Balance,
    rng: random.Random,
) -> Iterator[SentencePair]:
    """The pairs of one document."""
    document = documents[index]
    start = 0
    while start < len(document):
        end = document.reach(start, target)
        # A is at least one sentence, and so is B if it is from this chunk.
        cut = rng.randint(start + 1, end - 1) if end - start > 1 else end
        first = document.tokens(start, cut)
        is_random = balance.is_random(can_be_true=cut < end)
        if is_random:
            other = _another(documents, index, rng)
            begin = rng.randrange(len(other))
            second = other.tokens(begin, other.reach(begin, max(1, target - len(first))))
            start = cut  # what was not used begins the next chunk
        else:
            second = document.tokens(cut, end)
            start = end
        _truncate(first, second, room, rng)
        yield SentencePair(first, second, is_random)


def _truncate(first: list[int], second: list[int], room: int, rng: random.Random) -> None:
    """Drops tokens from the longer segment until both fit, at either end with even odds."""
    # Count first and cut once: dropping a list's head token by token is quadratic.
    lengths = [len(first), len(second)]
    heads = [0, 0]
    while sum(lengths) > room:
        longer = 0 if lengths[0] > lengths[1] else 1
        lengths[longer] -= 1
        heads[longer] += rng.random() < 0.5
    for segment, length, head in zip((first, second), lengths, heads, strict=True):
        segment[:] = segment[head : head + length]
