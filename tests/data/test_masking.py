"""Which tokens are masked, how many, and their replacements."""

import numpy as np
import pytest

from hf_bert_impl import BertTokenizer
from hf_bert_impl.data.masking import UNITS, Masker, MaskingOptions

WORDS, PIECES = 300, 200
ROWS = 3000


@pytest.fixture(scope="module")
def tokenizer(tokenizer_of):
    pieces = (f"##p{n}" for n in range(PIECES))
    return tokenizer_of([*(f"w{n}" for n in range(WORDS)), *pieces, "##"])


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


def masked(tokenizer, rows, seed=0, **options):
    masker = Masker(tokenizer, MaskingOptions(**options))
    rng = np.random.default_rng(seed)
    return [(ids, *masker.mask(ids, rng)) for ids in rows]


def assert_share(count, total, share):
    """A count lies within five standard deviations of a binomial distribution."""
    assert abs(count / total - share) < 5 * (share * (1 - share) / total) ** 0.5


@pytest.mark.parametrize("unit", UNITS)
def test_shares(tokenizer, unit):
    """15 % of the maskable tokens: of these 80 % [MASK], 10 % another token, 10 % the same."""
    maskable, fates = 0, np.zeros(3)
    for ids, seen, labels in masked(tokenizer, random_rows(ROWS, 20, 60), unit=unit):
        maskable += (ids > 4).sum()
        chosen = labels != -100
        assert (labels[chosen] == ids[chosen]).all()
        assert (seen[~chosen] == ids[~chosen]).all()
        is_mask = seen[chosen] == 4
        is_same = seen[chosen] == ids[chosen]
        fates += [is_mask.sum(), (~is_mask & ~is_same).sum(), is_same.sum()]
    # The number of each row is drawn between two neighbours, so the sum varies less than this.
    assert_share(fates.sum(), maskable, 0.15)
    # One random token in V is the same by chance. Words share their fate: fewer draws than tokens.
    total = fates.sum() / (1 if unit == "token" else 2)
    for fate, share in zip(fates / fates.sum(), (0.8, 0.1, 0.1), strict=True):
        assert_share(fate * total, total, share)


@pytest.mark.parametrize("unit", UNITS)
def test_special_tokens_and_padding_are_never_masked(tokenizer, unit):
    options = {"unit": unit, "probability": 0.9}
    put_in = set()
    for ids, seen, labels in masked(tokenizer, random_rows(2000, 1, 30), **options):
        assert (labels[ids < 5] == -100).all()
        assert (seen[ids < 5] == ids[ids < 5]).all()
        put_in |= set(seen[(seen != ids) & (seen != 4)].tolist())
    assert min(put_in) >= 5  # nor put in
    assert len(put_in) > 0.95 * (len(tokenizer) - 5)


def test_words_are_masked_whole(tokenizer):
    lengths = set()
    for ids, seen, labels in masked(tokenizer, random_rows(2000, 10, 60), unit="whole-word"):
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


@pytest.mark.parametrize("unit", UNITS)
def test_the_cap(tokenizer, unit):
    rows = list(random_rows(2000, 30, 60))
    counts = [
        (labels != -100).sum()
        for _, _, labels in masked(tokenizer, rows, unit=unit, max_predictions=4, probability=0.5)
    ]
    assert max(counts) == 4
    assert np.mean(counts) > 3


def test_whole_words_need_wordpiece(tokenizer_of):
    """A vocabulary that marks where words begin would have each of its pieces taken for a word."""
    other = tokenizer_of(["▁word", "▁an", "other"])
    with pytest.raises(ValueError, match=r"no pieces that begin with ##.*Use a WordPiece"):
        Masker(other, MaskingOptions(unit="whole-word"))
    Masker(other, MaskingOptions(unit="token"))


def test_a_tokenizer_without_a_mask():
    without = BertTokenizer({"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "[PAD]": 3}, mask_token=None)
    with pytest.raises(ValueError, match="has no mask token"):
        Masker(without)
