"""The error of this package: what a user reads when a checkpoint cannot be converted."""

from __future__ import annotations


class ConversionError(ValueError):
    """A checkpoint cannot be read, mapped or written.

    Args:
        given: What was found, with the file or tensor that it was found in.
        expected: What is expected in its place.
        remedy: How to mend it.
    """

    def __init__(self, given: str, expected: str, remedy: str) -> None:
        super().__init__(f"{given}; expected {expected}; {remedy}")
