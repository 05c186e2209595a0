"""Early checks of output files."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from hf_bert_impl.errors import InputError
from hf_bert_impl.files.atomic import check_place


def check_output_file(
    option: str,
    file: Path,
    overwrite: bool,
    *,
    endings: Sequence[str] = (),
    sources: Iterable[str] = (),
    others: Iterable[Path] = (),
) -> None:
    """Checks that a file can be written.

    Args:
        option: The option's name.
        file: The file.
        overwrite: Whether it may be replaced.
        endings: Allowed endings; empty for any.
        sources: Files that the command reads, as the user wrote them.
        others: Other files that it writes.

    Raises:
        InputError: The file cannot be written, or exists, or is one of the sources.
    """
    if endings and file.suffix not in endings:
        *first, last = endings
        allowed = f"{', '.join(first)} or {last}" if first else last
        raise InputError(f"{option} is {file}. End its name in {allowed}.")
    check_place(file, option)
    check_sources((file, *others), sources)
    if os.path.lexists(file) and not overwrite:
        raise InputError(
            f"{option} {file} exists. Choose another name, or replace it with --overwrite."
        )


def check_sources(written: Iterable[Path], sources: Iterable[str]) -> None:
    """Checks that a command does not overwrite its own input.

    Args:
        written: Files that it writes.
        sources: Files that it reads, as the user wrote them; `-` is standard input.

    Raises:
        InputError: A file is both.
    """
    read = []
    for source in sources:
        with contextlib.suppress(OSError, ValueError):  # reported when it is read
            is_input = source == "-"
            read.append(
                os.fstat(sys.stdin.fileno()) if is_input else os.stat(os.path.expanduser(source))
            )
    for file in written:
        if file.exists() and any(os.path.samestat(status, file.stat()) for status in read):
            raise InputError(
                f"This command reads {file}, which it would also write. Choose another output."
            )
