"""Options of new vocabularies; `hf-bert tokenizer` offers the fields."""

from __future__ import annotations

import dataclasses

from hf_bert_impl.data.option_ranges import POSITIVE_SHARE, STEPS, Range, check_ranges

#: The trainer allocates memory for this many tokens before it reads.
MOST_TOKENS = 10_000_000


@dataclasses.dataclass(frozen=True)
class WordPieceOptions:
    """How a WordPiece vocabulary is learnt."""

    vocab_size: int = 30522
    """Maximum number of tokens; there are fewer if the text has no more pieces to merge."""
    lowercase: bool = True
    """Lower-case the text and remove accents, in training and in use."""
    min_frequency: int = 2
    """How many times two pieces must occur together to be merged."""
    character_coverage: float = 0.9999
    """The share of the text's characters that get a token, the most frequent first, up to 1."""
    column: str | None = None
    """The column or field of the texts; None for text in JSON lines, a table's only one."""

    def __post_init__(self) -> None:
        sizes = Range(0, MOST_TOKENS, whole=True)
        check_ranges(self, vocab_size=sizes, min_frequency=STEPS, character_coverage=POSITIVE_SHARE)


@dataclasses.dataclass(frozen=True)
class WordOptions:
    """How a vocabulary of words is made."""

    vocab_size: int | None = None
    """Maximum number of tokens, special ones included; None for all words."""
    min_frequency: int = 1
    """How many times a word must occur."""
    column: str | None = None
    """The column or field of the texts; None for text in JSON lines, a table's only one."""

    def __post_init__(self) -> None:
        check_ranges(self, vocab_size=STEPS, min_frequency=STEPS)
