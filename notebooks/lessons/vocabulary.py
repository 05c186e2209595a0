"""Text to tokens to numbers, for translation: English in words, Chinese in characters.

Chinese has no spaces, and most characters are units of meaning. Characters therefore serve as
tokens, as in the released code of Devlin et al. (2019).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

PAD, BEGIN, END, UNKNOWN = range(4)
SPECIAL = ("[PAD]", "[BEGIN]", "[END]", "[UNK]")

_ENGLISH = re.compile(r"[a-z]+(?:'[a-z]+)*|\d+|[^\sa-z\d]")
_CHINESE = re.compile(r"[A-Za-z]+|\d+|\S")


def split_english(text: str) -> list[str]:
    """Lower-cased words, numbers and punctuation marks: "It's me." → it's, me, ."""
    return _ENGLISH.findall(text.lower().replace("’", "'"))


def split_chinese(text: str) -> list[str]:
    """Characters; Latin words and numbers stay whole: "我有3本书" → 我, 有, 3, 本, 书."""
    return _CHINESE.findall(text.replace("\u200b", ""))


class Vocabulary:
    """Numbers for tokens; the first four are `SPECIAL`.

    Args:
        sentences: Tokenised sentences to count.
        at_least: Minimum number of occurrences of a token with its own number.
    """

    def __init__(self, sentences: Iterable[Sequence[str]], at_least: int = 1) -> None:
        counts = Counter(token for sentence in sentences for token in sentence)
        # Ties are sorted, so that a number does not depend on the order of the sentences.
        frequent = sorted(token for token, count in counts.items() if count >= at_least)
        frequent.sort(key=lambda token: -counts[token])
        self.tokens: list[str] = [*SPECIAL, *frequent]
        self.numbers = {token: number for number, token in enumerate(self.tokens)}

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, sentence: Sequence[str]) -> list[int]:
        """Numbers of a sentence's tokens, with `UNKNOWN` for unknown ones, and `END`."""
        return [*(self.numbers.get(token, UNKNOWN) for token in sentence), END]

    def decode(self, numbers: Iterable[int]) -> list[str]:
        """Tokens up to `END`, without `PAD` and `BEGIN`."""
        tokens = []
        for number in numbers:
            if number == END:
                break
            if number not in (PAD, BEGIN):
                tokens.append(self.tokens[number])
        return tokens


def pad(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of unequal length as one tensor, padded with `PAD`.

    Args:
        rows: B lists of numbers.

    Returns:
        (B, longest) of int64.
    """
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows])


def shift_right(targets: Tensor) -> Tensor:
    """A decoder's input under teacher forcing: `BEGIN` and all but the last target.

    Args:
        targets: (B, T), the tokens to write.

    Returns:
        (B, T): at place t the correct token of place t - 1.
    """
    begin = torch.full_like(targets[:, :1], BEGIN)
    return torch.cat([begin, targets[:, :-1]], dim=1)
