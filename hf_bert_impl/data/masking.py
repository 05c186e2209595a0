"""Which tokens a masked language model has to predict, and which tokens replace them.

15 % of the tokens that can be masked are chosen (Devlin et al. 2019, section 3.1). Of these 80 %
become [MASK], 10 % a random token and 10 % stay. Whole-word masking chooses all pieces of a word
together, with one fate for all of them.

The number k of n maskable tokens is 0.15 n, rounded up or down at random so that its mean is exact,
but at least one. Whole words rarely add up to k. The words are put in random order on a circle, and
the words that begin within a random stretch of k tokens are chosen. Each word is equally probable,
and the mean stays k. (Google's code skips words that would exceed k, which masks too few long
words. transformers' collator always takes them, which masks too many tokens.)
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_bert_impl.data.option_ranges import check_ranges
from hf_bert_impl.errors import InputError, check_choice
from hf_bert_impl.model.losses import IGNORE_INDEX

UNITS = ("token", "whole-word")
#: Word beginnings of sentencepiece and byte-level vocabularies, which do not mark continuations.
WORD_BEGINNINGS = ("▁", "Ġ")
#: Shares of the chosen tokens that become [MASK] and that become random tokens.
MASK_SHARE = 0.8
RANDOM_SHARE = 0.1


@dataclass(frozen=True)
class MaskingOptions:
    """How tokens are chosen: single ones (`token`) or all pieces of a word (`whole-word`).

    `probability` is the share of the maskable tokens. `max_predictions` is the maximum per
    sequence, None for no limit; a single word may exceed it.
    """

    unit: str = "token"
    probability: float = 0.15
    max_predictions: int | None = None

    def __post_init__(self) -> None:
        check_choice("masking", self.unit, UNITS)
        check_ranges(self)


class Masker:
    """Masks token ids; each call draws new masks.

    Args:
        tokenizer: Any WordPiece tokenizer with a mask token.
        options: How tokens are chosen.

    Raises:
        ValueError: The tokenizer has no mask token, or does not mark the pieces of words as
            WordPiece does and whole words are to be masked.
    """

    def __init__(self, tokenizer: Any, options: MaskingOptions | None = None) -> None:
        self.options = options or MaskingOptions()
        if tokenizer.mask_token_id is None:
            raise InputError(
                "the tokenizer has no mask token, which masked-LM training needs. Use the "
                "tokenizer of a BERT checkpoint, e.g. google-bert/bert-base-uncased."
            )
        self.mask_id = int(tokenizer.mask_token_id)
        size = len(tokenizer)
        #: (V,) whether an id is a special token: never chosen, never a replacement.
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
                "the tokenizer's vocabulary has no pieces that begin with ##, which whole-word "
                "masking needs. Use a WordPiece tokenizer, or `masking='token'`.",
                "masking='token'",
            )
        self._replacements = np.flatnonzero(~self._is_special)

    def mask(
        self, ids: NDArray[np.int64], rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Masks a sequence.

        Args:
            ids: (S,) token ids with their special tokens; unchanged.
            rng: The only source of randomness.

        Returns:
            (S,) the model's input, and (S,) labels: the original ids at masked positions, otherwise
            -100.
        """
        positions, unit = self.units(ids)
        masked, labels = ids.copy(), np.full_like(ids, IGNORE_INDEX)
        if not len(positions):
            return masked, labels
        lengths = np.bincount(unit)
        fates = np.full(len(lengths), np.nan)  # NaN: not chosen
        chosen = self._choose(lengths, rng)
        fates[chosen] = rng.random(len(chosen))
        fate = fates[unit]  # (n,) of each maskable token
        is_chosen = ~np.isnan(fate)
        labels[positions[is_chosen]] = ids[positions[is_chosen]]
        masked[positions[fate < MASK_SHARE]] = self.mask_id
        at_random = positions[(fate >= MASK_SHARE) & (fate < MASK_SHARE + RANDOM_SHARE)]
        masked[at_random] = rng.choice(self._replacements, size=len(at_random))
        return masked, labels

    def units(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The units that are masked together.

        Args:
            ids: (S,) token ids.

        Returns:
            (n,) the positions that can be masked, and (n,) the number of the unit (a token or a
            word) of each.
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
        # The stretch may hold no beginning of a word, or its first word may be too long.
        return chosen if len(chosen) else np.array([np.argmin(lengths)])
