"""Which tokens are masked, how many, and their replacements."""

import numpy as np
import pytest

from hf_bert_impl.data.masking import UNITS, Masker, MaskingOptions
from tests.support.checkpoints import tokenizer_of

WORDS, PIECES = 300, 200
ROWS = 3000


PIECED = tokenizer_of((*(f"w{n}" for n in range(WORDS)), *(f"##p{n}" for n in range(PIECES)), "##"))


def random_rows(rows, shortest, longest):
    """[CLS] words [SEP] [PAD]: words of several pieces, an [UNK] now and then."""
    rng = np.random.default_rng(0)
    for _ in range(rows):
        length = rng.integers(shortest, longest + 1)
        is_piece = rng.random(length) < 0.4
        ids = np.where(is_piece, 5 + WORDS + rng.integers(0, PIECES, length), 0)
        ids = np.where(is_piece, ids, 5 + rng.integers(0, WORDS, length))
        ids[rng.random(length) < 0.03] = 1
        yield np.array([2, *ids, 3, *[0] * rng.integers(0, 4)])


def masked(rows, seed=0, **options):
    masker = Masker(PIECED, MaskingOptions(**options))
    rng = np.random.default_rng(seed)
    return [(ids, *masker.mask(ids, rng)) for ids in rows]


def assert_share(count, total, share):
    """A count lies within five standard deviations of a binomial distribution."""
    assert abs(count / total - share) < 5 * (share * (1 - share) / total) ** 0.5


@pytest.mark.parametrize("unit", UNITS)
def test_shares(unit):
    """15 % of the maskable tokens: of these 80 % [MASK], 10 % another token, 10 % the same.

    Special tokens and padding are never masked, nor put in.
    """
    maskable, fates, put_in = 0, np.zeros(3), set()
    for ids, seen, labels in masked(random_rows(ROWS, 1, 60), unit=unit):
        maskable += (ids > 4).sum()
        chosen = labels != -100
        assert (ids[chosen] > 4).all()
        assert (labels[chosen] == ids[chosen]).all()
        assert (seen[~chosen] == ids[~chosen]).all()
        is_mask = seen[chosen] == 4
        is_same = seen[chosen] == ids[chosen]
        put_in |= set(seen[chosen][~is_mask].tolist())
        fates += [is_mask.sum(), (~is_mask & ~is_same).sum(), is_same.sum()]
    assert min(put_in) > 4 and len(put_in) > 0.95 * (len(PIECED) - 5)
    # The number of each row is drawn between two neighbours, so the sum varies less than this.
    assert_share(fates.sum(), maskable, 0.15)
    # One random token in V is the same by chance. Words share their fate: fewer draws than tokens.
    total = fates.sum() / (1 if unit == "token" else 2)
    for fate, share in zip(fates / fates.sum(), (0.8, 0.1, 0.1), strict=True):
        assert_share(fate * total, total, share)


def test_words_are_masked_whole():
    lengths = set()
    for ids, seen, labels in masked(random_rows(2000, 10, 60), unit="whole-word"):
        # A word begins where no "##" stands, and after anything that cannot be masked.
        is_piece = (ids >= 5 + WORDS) & (ids < 5 + WORDS + PIECES)
        begins = ~is_piece | np.concatenate([[True], ids[:-1] < 5])
        for word in np.split(np.arange(len(ids)), np.flatnonzero(begins)[1:]):
            chosen = labels[word] != -100
            assert chosen.all() or not chosen.any()
            if chosen.any():
                lengths.add(len(word))
                # One fate for the word: all [MASK], all kept, or all random.
                is_mask = seen[word] == 4
                assert is_mask.all() or not is_mask.any()
    assert max(lengths) > 3
    # A piece after an unknown token is a word of its own.
    units = Masker(PIECED, MaskingOptions("whole-word")).units
    assert units(np.array([2, 5, 5 + WORDS, 1, 5 + WORDS, 3]))[1].tolist() == [0, 0, 1]


@pytest.mark.parametrize("unit", UNITS)
def test_the_cap(unit):
    rows = list(random_rows(2000, 30, 60))
    counts = [
        (labels != -100).sum()
        for _, _, labels in masked(rows, unit=unit, max_predictions=4, probability=0.5)
    ]
    assert max(counts) == 4
    assert np.mean(counts) > 3
