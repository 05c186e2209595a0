"""Which tokens a masked language model has to guess, and what it sees in their place.

15 % of the tokens that can be masked are chosen (Devlin et al. 2019, section 3.1). Of these 80 %
become [MASK], 10 % a random token and 10 % stay as they are. With whole-word masking all pieces of
a word are chosen together, and one of the three happens to all of them.

The number k is 0.15 n for n maskable tokens, rounded up or down at random so that its mean is
exact, but one at least. Whole words rarely add up to it. So the words are laid in random order
around a circle, and those that begin within a stretch of k tokens, anywhere on it, are chosen: each
word is as probable as any other, and the mean is still k. (Google's code leaves words out that
would exceed the number, which masks too few long ones; transformers' collator always takes them,
which masks too many tokens.)
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_bert_impl.data.option_ranges import check_ranges
from hf_bert_impl.errors import InputError, check_choice
from hf_bert_impl.model.losses import IGNORE_INDEX

#: What `MaskingOptions.unit` can be.
UNITS = ("token", "whole-word")
#: What begins a word in vocabularies that do not mark how it goes on: sentencepiece's, byte-level.
WORD_BEGINNINGS = ("▁", "Ġ")
#: Shares of the chosen tokens that become [MASK] and that become random tokens.
MASK_SHARE = 0.8
RANDOM_SHARE = 0.1


@dataclass(frozen=True)
class MaskingOptions:
    """How tokens are chosen."""

    unit: str = "token"
    """`token`, or `whole-word`: the pieces of a word are chosen together."""
    probability: float = 0.15
    """Share of the maskable tokens that is chosen."""
    max_predictions: int | None = None
    """Most tokens chosen in a sequence; None for no limit. A single word may exceed it."""

    def __post_init__(self) -> None:
        check_choice("masking", self.unit, UNITS)
        check_ranges(self)


class Masker:
    """Masks token ids, each time anew.

    Args:
        tokenizer: Any WordPiece tokenizer with a mask token.
        options: How tokens are chosen.

    Raises:
        ValueError: The tokenizer has no mask token, or does not mark the pieces of a word as
            WordPiece does where whole words are to be masked.
    """

    def __init__(self, tokenizer: Any, options: MaskingOptions | None = None) -> None:
        self.options = options or MaskingOptions()
        if tokenizer.mask_token_id is None:
            raise InputError(
                "the tokenizer has no mask token, which masked-LM training needs",
                "[MASK]",
                "give the tokenizer of a BERT checkpoint, or train one",
            )
        self.mask_id = int(tokenizer.mask_token_id)
        size = len(tokenizer)
        #: (V,) whether an id is a special token or padding: never chosen, never put in.
        self._is_special = np.zeros(size, dtype=bool)
        self._is_special[list(tokenizer.all_special_ids)] = True
        #: (V,) whether an id continues a word.
        self._continues = np.zeros(size, dtype=bool)
        vocabulary = tokenizer.get_vocab()
        for token, number in vocabulary.items():
            # A lone "##" is two number signs of the text.
            self._continues[number] = token.startswith("##") and len(token) > 2
        by_beginnings = any(token.startswith(WORD_BEGINNINGS) for token in vocabulary)
        if self.options.unit == "whole-word" and by_beginnings and not self._continues.any():
            raise InputError(
                "whole words are to be masked, and the tokenizer's vocabulary has no pieces that "
                "begin with ##",
                "a WordPiece tokenizer",
                "mask tokens, or give another tokenizer",
            )
        self._replacements = np.flatnonzero(~self._is_special)  # ids that can be put in

    def mask(
        self, ids: NDArray[np.int64], rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Masks a sequence.

        Args:
            ids: (S,) token ids with their special tokens; they are not changed.
            rng: Decides everything.

        Returns:
            (S,) what the model sees, and (S,) labels: the ids where it has to guess, else -100.
        """
        positions, unit = self.units(ids)
        seen, labels = ids.copy(), np.full_like(ids, IGNORE_INDEX)
        if not len(positions):
            return seen, labels
        lengths = np.bincount(unit)
        fates = np.full(len(lengths), np.nan)  # of the units that are not chosen
        chosen = self._choose(lengths, rng)
        fates[chosen] = rng.random(len(chosen))
        fate = fates[unit]  # (n,) of each maskable token
        is_chosen = ~np.isnan(fate)
        labels[positions[is_chosen]] = ids[positions[is_chosen]]
        seen[positions[fate < MASK_SHARE]] = self.mask_id
        at_random = positions[(fate >= MASK_SHARE) & (fate < MASK_SHARE + RANDOM_SHARE)]
        seen[at_random] = rng.choice(self._replacements, size=len(at_random))
        return seen, labels

    def units(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """What is masked together.

        Args:
            ids: (S,) token ids.

        Returns:
            (n,) the positions that can be masked, and (n,) the number of the unit (a token or a
            word) that each belongs to. A cut word is as much of it as there is.
        """
        positions = np.flatnonzero(~self._is_special[ids])
        if self.options.unit == "token" or not len(positions):
            return positions, np.arange(len(positions))
        begins = ~self._continues[ids[positions]]
        begins[0] = True
        begins[1:] |= np.diff(positions) > 1  # a special token lies between
        return positions, np.cumsum(begins) - 1

    def _choose(self, lengths: NDArray[np.intp], rng: np.random.Generator) -> NDArray[np.intp]:
        """The numbers of the chosen units, given the tokens of each."""
        total = int(lengths.sum())
        budget = max(1, int(self.options.probability * total + rng.random()))
        order = rng.permutation(len(lengths))
        begins = np.cumsum(lengths[order]) - lengths[order]
        distance = (begins - rng.integers(total)) % total  # from where the stretch begins
        within = np.flatnonzero(distance < budget)
        chosen = order[within[np.argsort(distance[within])]]
        if self.options.max_predictions is not None:
            chosen = chosen[np.cumsum(lengths[chosen]) <= self.options.max_predictions]
        # It may be that no word begins there, or that the first one is too long.
        return chosen if len(chosen) else np.array([np.argmin(lengths)])
