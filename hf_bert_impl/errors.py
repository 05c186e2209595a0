"""The error that a user can mend, in one line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

#: How many missing weights a message lists.
SHOWN = 3


class InputError(ValueError):
    """Input that cannot be used.

    The message is one line: the fact, the limit, and a remedy that can be pasted. Names of
    arguments are between backticks: `` `head` is 'x' ``, ``replace it with `overwrite=True` ``.
    The command line replaces them by its options.
    """

    def __str__(self) -> str:
        if len(self.args) == 3:
            given, expected, remedy = self.args
            return f"{given}; expected {expected}; {remedy}"
        return super().__str__()


class MissingFile(InputError, FileNotFoundError):
    """A file that was named is not there."""


class InputNote(UserWarning):
    """How an input was read, where another reading is possible. Commands print it as one line."""


class UnfitTokenizer(InputError, TypeError):
    """A tokenizer that is written in Python, where one of the tokenizers library is needed."""


def check_offsets(tokenizer: Any) -> None:
    """Checks that a tokenizer says where its tokens are in the text.

    Raises:
        UnfitTokenizer: It does not.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise UnfitTokenizer(
            f"{type(tokenizer).__name__} does not give the positions of tokens in the text. "
            "Use a fast tokenizer, such as hf_bert_impl.BertTokenizer."
        )


def check_choice(name: str, value: Any, allowed: Iterable[str]) -> None:
    """Checks that a value is one of those that there are.

    Args:
        name: What it is, for the message: an argument's name, or words.
        value: What was given.
        allowed: Those that there are.

    Raises:
        InputError: It is none of them.
    """
    if value not in allowed:
        raise InputError(f"{name} is {value!r}. Choose one of {', '.join(allowed)}.")


def check_whole(name: object, missing: Iterable[str], whole: str, remedy: str) -> None:
    """Checks that a checkpoint has all weights.

    Args:
        name: The checkpoint's name.
        missing: The names of the weights that it lacks.
        whole: What they are weights of, as in "BertForMaskedLM".
        remedy: What to do about it.

    Raises:
        InputError: Some are missing.
    """
    names = sorted(missing)
    if names:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        count = f"{len(names)} weight{'s' * (len(names) > 1)}"
        raise InputError(
            f"{name} lacks {count} of {whole} ({', '.join(names[:SHOWN])}{more}), which would be "
            f"random: {remedy}."
        )


def one_line(error: object) -> str:
    """What an exception or a library says, on one line; its type where it says nothing."""
    line = " ".join(str(error).split()) or type(error).__name__
    # Half a surrogate pair out of a file cannot be printed.
    return line.encode("utf-8", "backslashreplace").decode("utf-8")
