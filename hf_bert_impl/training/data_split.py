"""One file of labelled examples as training, validation and test data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_bert_impl.errors import InputError

PARTS = ("train", "validation", "test")


def read_shares(text: str) -> tuple[float, ...]:
    """The shares of `PARTS`, from a text such as "0.8,0.1,0.1"; the third may be missing.

    Raises:
        InputError: They are not two or three positive numbers with the sum 1.
    """
    try:
        shares = tuple(map(float, text.split(",")))
    except ValueError:
        shares = ()
    if len(shares) not in (2, 3) or not min(shares) > 0 or abs(sum(shares) - 1) > 1e-6:
        raise InputError(
            f"`split` is {text!r}. Use the shares of training, validation and test data, with the "
            "sum 1, e.g. 0.8,0.1,0.1",
            "split",
        )
    return shares


def split_examples(
    examples: Sequence[Any], shares: Sequence[float], seed: int
) -> dict[str, list[Any]]:
    """Splits at random, with the same mix of labels in each part.

    Equal texts get into the same part, so that no held-out text is a training text.

    Args:
        examples: Those of one file.
        shares: From `read_shares`.
        seed: The same seed gives the same parts.

    Returns:
        The examples by part, in the order of the file.

    Raises:
        InputError: The examples are questions about shared paragraphs, or too few for a part.
    """
    from sklearn.model_selection import train_test_split

    from hf_bert_impl.tasks.base import Example

    if not isinstance(examples[0], Example):
        raise InputError(
            "`split` would separate questions about the same paragraph. Name files for training "
            "and validation instead."
        )
    labels: dict[str, str] = {}  # by text; the first of a text that occurs with several
    for example in examples:
        label = example.label if isinstance(example.label, str) else ""
        labels.setdefault(repr((example.text, example.pair)), label)
    part_of = dict.fromkeys(labels, "train")
    rest = list(labels)
    for part, share in zip(PARTS[1:], shares[1:], strict=False):
        count = round(share * len(labels))
        try:
            rest, held_out = train_test_split(
                rest, test_size=count, stratify=[labels[text] for text in rest], random_state=seed
            )
        except ValueError:
            names = len(set(labels.values()))
            fewest = min(map(list(labels.values()).count, set(labels.values())))
            raise InputError(
                f"{len(labels)} texts, {fewest} of the rarest of {names} labels, are too few for a "
                f"{part} share of {share:g}. Use a larger share, or remove rare labels."
            ) from None
        part_of |= dict.fromkeys(held_out, part)
    found: dict[str, list[Any]] = {part: [] for part, _ in zip(PARTS, shares, strict=False)}
    for example in examples:
        found[part_of[repr((example.text, example.pair))]].append(example)
    return found
