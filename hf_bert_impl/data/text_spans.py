"""Spans of text for masked-LM training, and packs of them that fill a whole sequence.

A span is neighbouring sentences of one document, up to the full length. The last span of a document
is often short, so a pack joins several spans into one sequence. Each span keeps its own positions,
and attention stays within it (Krell et al. 2021, "Efficient sequence packing without
cross-contamination"). A step then has the same work whatever the documents are like.
"""

import bisect
import random
from collections.abc import Iterator, Sequence

from hf_bert_impl.data.tokenized_documents import TokenizedDocument
from hf_bert_impl.errors import InputError

#: [CLS] and [SEP].
SPAN_SPECIAL_TOKENS = 2


def make_spans(
    document: TokenizedDocument,
    rng: random.Random,
    *,
    max_length: int,
    short_seq_prob: float = 0.0,
) -> Iterator[list[int]]:
    """Cuts a document into spans of whole sentences; only a sentence that is too long is cut.

    Args:
        document: To cut.
        rng: Draws the target length.
        max_length: Maximum tokens of a span with its two special tokens.
        short_seq_prob: The probability that the document's target length is drawn at random.

    Yields:
        Spans without special tokens; together they are the document.

    Raises:
        ValueError: `max_length` is too small.
    """
    room = max_length - SPAN_SPECIAL_TOKENS
    if room < 1:
        raise InputError(
            f"max_length={max_length} is too short for 2 special tokens and text. "
            f"Use at least {SPAN_SPECIAL_TOKENS + 1}.",
            "max_length",
        )
    target = rng.randint(1, room) if rng.random() < short_seq_prob else room
    span: list[int] = []
    for number, length in enumerate(document.lengths):
        if span and len(span) + length > target:
            yield span
            span = []
        span += document.tokens(number, number + 1)
        while len(span) > target:
            yield span[:target]
            span = span[target:]
    if span:
        yield span


def pack(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Fills sequences with spans: best fit, the longest first.

    Args:
        lengths: Tokens of each span with special tokens, at most `capacity`.
        capacity: Tokens of a sequence.

    Returns:
        Packs, each the numbers of its spans; every span is in exactly one.
    """
    packs: list[list[int]] = []
    # Free tokens and number of each open pack, fullest first.
    open_packs: list[tuple[int, int]] = []
    for number in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = lengths[number]
        place = bisect.bisect_left(open_packs, (length, 0))
        if place == len(open_packs):
            room, chosen = capacity, len(packs)
            packs.append([])
        else:
            room, chosen = open_packs.pop(place)
        packs[chosen].append(number)
        if room > length:
            bisect.insort(open_packs, (room - length, chosen))
    return packs
