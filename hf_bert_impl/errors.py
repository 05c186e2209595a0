"""The error that a user can mend, in one line."""

from __future__ import annotations


class InputError(ValueError):
    """What the user gave cannot be worked with.

    Names of arguments stand between backticks: `` `head` is 'x' ``, ``replace it with
    `overwrite=True` ``. The command line writes its options in their place.

    Args:
        given: What was given, with the file, tensor or argument that it was found in.
        expected: What is expected in its place.
        remedy: How to mend it.
    """

    def __init__(self, given: str, expected: str, remedy: str) -> None:
        super().__init__(f"{given}; expected {expected}; {remedy}")


def one_line(error: object) -> str:
    """What an exception or a library says, on one line; its type where it says nothing."""
    line = " ".join(str(error).split()) or type(error).__name__
    # Half a surrogate pair out of a file cannot be printed.
    return line.encode("utf-8", "backslashreplace").decode("utf-8")
