"""Locks that allow one writer per output."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from hf_bert_impl.errors import InputError
from hf_bert_impl.files.atomic import unwritable


@contextlib.contextmanager
def output_lock(output: Path) -> Iterator[None]:
    """Keeps other runs from writing the same output.

    The lock is on `lock_file(output)`, which is deleted at the end. The system releases it when the
    process ends. Missing parent folders are created, and removed at the end if empty.

    Args:
        output: The file or folder to write.

    Raises:
        InputError: Another run is writing it, or its folder is not writable.
    """
    file = lock_file(output)
    missing = [path for path in file.parents if not path.exists()][::-1]
    with contextlib.ExitStack() as undo:
        try:
            for path in missing:
                path.mkdir(exist_ok=True)
                undo.callback(_remove_empty, path)
            lock = FileLock(file, timeout=0, mode=0o666)
            undo.enter_context(lock)
        except Timeout:
            raise InputError(
                f"Another run is writing {output}. Wait for it, stop it, or choose another output."
            ) from None
        except OSError as error:
            raise unwritable(output, error) from error
        try:
            yield
        finally:
            # Before it is unlocked. A forked process holds nothing, and a file with content is not
            # ours.
            if lock.is_locked and not file.stat().st_size:
                with contextlib.suppress(OSError):  # Windows deletes no open file
                    file.unlink()


def lock_file(output: Path) -> Path:
    """The file that is locked: `.NAME.lock` next to the output, or in it if only it is writable."""
    output = Path(os.path.realpath(output))  # unlike `resolve`, of a link to itself too
    place = output.parent
    if not os.access(place, os.W_OK) and output.is_dir():
        place = output  # such as a mounted folder
    return place / f".{output.name}.lock"


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
