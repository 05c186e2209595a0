"""What is asked of a file that a command is to write, before anything is loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from hf_bert_impl.errors import InputError


def check_output_file(
    option: str,
    file: Path,
    overwrite: bool,
    *,
    endings: Sequence[str] = (),
    sources: Iterable[str] = (),
    beside: Iterable[Path] = (),
) -> None:
    """Checks that a file can be written.

    Args:
        option: By which it is named.
        file: The file.
        overwrite: Whether it may be replaced.
        endings: Those that its name may have; empty for any.
        sources: Files that the command reads, as the user wrote them.
        beside: What else it writes.

    Raises:
        InputError: The file cannot be written, or exists, or is one of the sources.
    """
    if endings and file.suffix not in endings:
        *others, last = endings
        allowed = f"{', '.join(others)} or {last}" if others else last
        raise InputError(f"{option} is {file}. End its name in {allowed}.")
    if not file.absolute().parent.is_dir():
        raise InputError(
            f"There is no folder {file.parent} for {option} {file.name}. Create it: mkdir "
            f"-p {file.parent}"
        )
    if file.is_dir():
        raise InputError(f"{option} {file} is a folder. Name a file, such as {file / 'result'}.")
    check_sources((file, *beside), sources)
    if os.path.lexists(file) and not overwrite:
        raise InputError(
            f"{option} {file} exists. Choose another name, or replace it with --overwrite."
        )


def check_sources(written: Iterable[Path], sources: Iterable[str]) -> None:
    """Checks that no command writes over what it reads, by whatever name.

    Args:
        written: Files that it writes, there or not.
        sources: What it reads, as the user wrote it; `-` is standard input.

    Raises:
        InputError: A file is both.
    """
    read = list(map(_status, sources))
    for file in written:
        status = _status(str(file))
        if status is not None and any(it and os.path.samestat(it, status) for it in read):
            raise InputError(
                f"This command reads {file}, which it would also write. Choose another output."
            )


def _status(source: str) -> os.stat_result | None:
    try:
        return os.fstat(sys.stdin.fileno()) if source == "-" else Path(source).expanduser().stat()
    except (OSError, ValueError):  # no such file, which is said when it is read
        return None
