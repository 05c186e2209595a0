"""Tagged words: a word a line with its tags after it, a blank line between sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hf_bert_impl.errors import InputError
from hf_bert_impl.files.text import numbered_lines


def read_conll(path: str | Path, columns: Sequence[int]) -> list[tuple[tuple[list[str], ...], str]]:
    """Reads columns of a CoNLL file.

    Fields are separated by tabs where the first line has one, and else by blanks. Lines that begin
    with `-DOCSTART-` stand between documents and are passed over.

    Args:
        path: The file, in UTF-8.
        columns: Which fields, from 0; negative ones count from the end of the line.

    Returns:
        For each sentence the fields of its words, a list a column, and where it begins, as in
        "line 7 of train.conll".

    Raises:
        ValueError: It is not UTF-8, or a line has too few fields.
    """
    needed = max(column + 1 if column >= 0 else -column for column in columns)
    needed = max(needed, 2)
    sentences: list[tuple[tuple[list[str], ...], str]] = []
    inside, separator = False, None
    for number, line in numbered_lines(path):
        if number == 1 and "\t" in line:
            separator = "\t"
        # Lines with nothing but tabs separate too. A word may be a blank of Unicode, with its tag.
        if not line.strip() or line.startswith("-DOCSTART-"):
            inside = False
            continue
        fields = line.split(separator)
        if len(fields) < needed:
            raise InputError(
                f"line {number} of {path} has {len(fields)} fields",
                f"at least {needed}, a word and its tags",
                "mend the line, or name other columns",
            )
        if not inside:
            sentences.append((tuple([] for _ in columns), f"line {number} of {path}"))
            inside = True
        for column, values in zip(columns, sentences[-1][0], strict=True):
            values.append(fields[column])
    return sentences
