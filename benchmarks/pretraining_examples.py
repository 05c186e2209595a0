"""The pre-training examples of a text: sentence pairs, and the masking of each token."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np

from hf_bert_impl.data.documents import read_documents
from hf_bert_impl.data.examples import ExampleOptions, cut_examples
from hf_bert_impl.data.masking import MASK_SHARE, RANDOM_SHARE, Masker, MaskingOptions
from hf_bert_impl.data.tokenized_documents import tokenize
from hf_bert_impl.errors import InputError
from hf_bert_impl.tables import console, print_table

#: Tokens of the sentence whose masks are shown, and of the pairs.
SENTENCE_TOKENS = range(24, 41)
PAIR_TOKENS = 48
#: Documents among which pairs are shown.
PAIR_DOCUMENTS = 100
#: Masks drawn to count how often each case occurs.
DRAWS = 5_000

#: The cases of masking.
CASES = (
    "special token: never guessed",
    "not chosen: seen, not guessed",
    "guessed behind [MASK]",
    "guessed behind a random token",
    "guessed, and seen as it is",
)
CHOSEN = MaskingOptions().probability
#: The shares of all but the first, of the tokens that can be masked.
EXPECTED = (
    1 - CHOSEN,
    CHOSEN * MASK_SHARE,
    CHOSEN * RANDOM_SHARE,
    CHOSEN * (1 - MASK_SHARE - RANDOM_SHARE),
)


def show_pairs(texts: Path, column: str, tokenizer: Any) -> None:
    """Prints a next-sentence pair of each kind, out of a table with a column of texts."""
    read = read_documents([texts], column=column)
    documents = tokenize([*itertools.islice(read, PAIR_DOCUMENTS)], tokenizer)
    options = ExampleOptions(max_length=PAIR_TOKENS)
    rows: dict[str, list[str]] = {}
    for example in cut_examples(
        documents, range(len(documents)), random.Random(0), tokenizer, options
    ):
        kind = "of another document" if example["next_sentence_label"] else "of the same document"
        second = example["token_type_ids"] == 1
        ids = example["input_ids"]
        rows.setdefault(kind, [kind, tokenizer.decode(ids[~second]), tokenizer.decode(ids[second])])
        if len(rows) == 2:
            break
    print_table(
        console(), "Next-sentence pairs", ["B is", "A", "B"], rows.values(), words=(0, 1, 2)
    )


def show_masking(texts: Path, column: str, tokenizer: Any) -> dict[str, float]:
    """Prints the five cases on the first fitting sentence, and returns the share of each.

    Raises:
        InputError: No sentence fits.
    """
    documents = read_documents([texts], column=column)
    sentences = itertools.chain.from_iterable(documents)
    coded = (np.array(tokenizer(text)["input_ids"]) for text in sentences)
    ids = next((ids for ids in coded if len(ids) in SENTENCE_TOKENS), None)
    if ids is None:
        low, high = SENTENCE_TOKENS[0], SENTENCE_TOKENS[-1]
        raise InputError(
            f"no text has a sentence to show. Expected {low} to {high} tokens. Add some."
        )
    masker = Masker(tokenizer)
    special = np.isin(ids, tokenizer.all_special_ids)
    counts = np.zeros(len(CASES))
    shown: list[list[str]] = []
    for seed in range(DRAWS):
        seen, labels = masker.mask(ids, np.random.default_rng(seed))
        cases = cases_of(ids, seen, labels, special, masker.mask_id)
        counts += np.bincount(cases, minlength=len(CASES))
        if not shown and len({*cases}) == len(CASES):
            tokens, given = map(tokenizer.convert_ids_to_tokens, (ids, seen))
            names = [CASES[case] for case in cases]
            shown = [list(row) for row in zip(tokens, given, names, strict=True)]
    title = "Masks of one sentence: the first draw with all five cases"
    print_table(console(), title, ["token", "the model sees", ""], shown, words=(0, 1, 2))
    shares = counts[1:] / counts[1:].sum()  # of the tokens that can be masked
    print_table(
        console(),
        f"How often each occurs in {DRAWS:,} draws",
        ["", "share", "expected"],
        [
            [name, f"{share:.2%}", f"{expected:.2%}"]
            for name, share, expected in zip(CASES[1:], shares, EXPECTED, strict=True)
        ],
    )
    return dict(zip(CASES[1:], shares.tolist(), strict=True))


def cases_of(
    ids: np.ndarray, seen: np.ndarray, labels: np.ndarray, special: np.ndarray, mask_id: int
) -> np.ndarray:
    """(S,) the number of each token's case in `CASES`."""
    chosen = labels >= 0
    return np.select([special, ~chosen, seen == mask_id, seen != ids], [0, 1, 2, 3], default=4)
