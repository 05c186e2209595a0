"""T5's pre-training data: spans are cut out, and the decoder writes them.

Raffel et al. (2020, section 3.1.4 and figure 2): 15 % of the tokens, in spans of three on average.
A sentinel replaces each span, and the target lists the sentinels, each with its span.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


def sentinel(number: int) -> str:
    """The token that replaces the span of that number, from 0."""
    return f"<{number}>"


def choose_spans(
    length: int, rng: random.Random, *, share: float = 0.15, mean: float = 3.0
) -> list[tuple[int, int]]:
    """Chooses the spans to cut out.

    It divides the tokens to cut at random into spans, and the other tokens into the pieces around
    them. The numbers of both are therefore exact.

    Args:
        length: Tokens of the text.
        rng: The random generator.
        share: The share of tokens to cut, at least one token.
        mean: Mean length of a span.

    Returns:
        Beginnings and ends, in order. A token or more is before each span.
    """
    cut = min(max(1, round(share * length)), length - 1)
    count = min(max(1, round(cut / mean)), cut, length - cut)
    spans = _divide(cut, count, rng)
    # The piece behind the last span may be empty.
    pieces = _divide(length - cut + 1, count + 1, rng)[:count]
    found, place = [], 0
    for piece, span in zip(pieces, spans, strict=True):
        found.append((place + piece, place + piece + span))
        place += piece + span
    return found


def corrupt(tokens: Sequence[str], spans: Sequence[tuple[int, int]]) -> tuple[list[str], list[str]]:
    """Cuts the spans out.

    Args:
        tokens: The text.
        spans: Beginnings and ends, in order.

    Returns:
        The encoder's input and the decoder's output.
    """
    source: list[str] = []
    target: list[str] = []
    place = 0
    for number, (begin, end) in enumerate(spans):
        source += [*tokens[place:begin], sentinel(number)]
        target += [sentinel(number), *tokens[begin:end]]
        place = end
    return [*source, *tokens[place:]], [*target, sentinel(len(spans))]


def _divide(total: int, parts: int, rng: random.Random) -> list[int]:
    """A random division into parts of at least one."""
    ends = sorted(rng.sample(range(1, total), parts - 1))
    return [end - begin for begin, end in zip([0, *ends], [*ends, total], strict=True)]
