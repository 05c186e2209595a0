"""Errors that a user can fix."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

#: Maximum number of missing weights in a message.
SHOWN = 3


class InputError(ValueError):
    """Input that cannot be used.

    The message has the fact, the limit and a remedy.

    Attributes:
        options: The arguments in the message that the command line shows as its options, with
            spaces between them in the call. In the message they are between backticks, with or
            without a value (`overwrite=True`), or its first word.
    """

    def __init__(self, message: object = "", options: str = "") -> None:
        super().__init__(message)
        self.options = options.split()


class MissingFile(InputError, FileNotFoundError):
    """A named file does not exist."""


class InputNote(UserWarning):
    """A note on how an ambiguous input was read. Commands print it as one line."""


def check_offsets(tokenizer: Any) -> None:
    """Raises InputError unless a tokenizer gives the positions of its tokens in the text."""
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"{type(tokenizer).__name__} does not give the positions of tokens in the text. "
            "Use a fast tokenizer, such as hf_bert_impl.BertTokenizer."
        )


def check_choice(name: str, value: Any, allowed: Iterable[str]) -> None:
    """Raises InputError unless an argument's value is allowed."""
    if value not in allowed:
        raise InputError(f"{name} is {value!r}. Choose one of {', '.join(allowed)}.", name)


def check_whole(name: object, missing: Iterable[str], whole: str, remedy: str) -> None:
    """Checks that a checkpoint has all weights.

    Args:
        name: The checkpoint's name.
        missing: The names of missing weights.
        whole: Their class, as in "BertForMaskedLM".
        remedy: The remedy, as in "restore its files".

    Raises:
        InputError: Weights are missing.
    """
    names = sorted(missing)
    if names:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        count = f"{len(names)} weight{'s' * (len(names) > 1)}"
        raise InputError(
            f"{name} lacks {count} of {whole} ({', '.join(names[:SHOWN])}{more}), which would be "
            f"random: {remedy}."
        )


def kind_of(value: object) -> str:
    """A value's type with its article, as in "an int"; "null" for None, as JSON has it."""
    name = type(value).__name__
    return "null" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def one_line(error: object) -> str:
    """The message of an exception on one line; its type if the message is empty."""
    line = " ".join(str(error).split()) or type(error).__name__
    # Half a surrogate pair cannot be printed.
    return line.encode("utf-8", "backslashreplace").decode("utf-8")
