"""Atomic writes of files and folders."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hf_bert_impl.errors import InputError

#: Prefix of partial files; a killed process leaves them behind.
PARTIAL = ".partial-"


@contextlib.contextmanager
def atomic_files(folder: Path) -> Iterator[Path]:
    """A temporary folder whose files are moved into another one at the end.

    Each file is replaced atomically, and other files stay. After an error, the folder is unchanged.

    Args:
        folder: The folder of the files, created if missing.

    Yields:
        The temporary folder, inside that one.
    """
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=folder))
    try:
        yield fresh
        for file in sorted(fresh.iterdir()):
            sync(file)
            os.replace(file, folder / file.name)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()  # fails unless it is empty


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary name with the same ending for one file, which is moved to `path` at the end.

    Raises:
        InputError: The disk is full.
    """
    is_new = not path.parent.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{PARTIAL}{secrets.token_hex(8)}{path.suffix}")
    try:
        yield fresh
        sync(fresh)
        os.replace(fresh, path)
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise unwritable(path, error) from error
    finally:
        fresh.unlink(missing_ok=True)
        if is_new:
            with contextlib.suppress(OSError):
                path.parent.rmdir()  # fails unless it is empty


def check_place(file: Path, what: str) -> None:
    """Checks early that a file can be written.

    Args:
        file: The file.
        what: Its purpose or option, for messages.

    Raises:
        InputError: It is a folder, or its folder is missing or not writable.
    """
    if not file.absolute().parent.is_dir():
        raise InputError(
            f"There is no folder {file.parent} for {what}. Create it: mkdir -p {file.parent}"
        )
    if file.is_dir():
        raise InputError(f"{file} is a folder. Name a file for {what}, such as {file / 'result'}.")
    check_rights(file)


def check_rights(output: Path) -> None:
    """Raises InputError unless the user may write into a new or existing folder, or for a file."""
    place = output.absolute()
    while not place.is_dir():
        place = place.parent
    if not os.access(place, os.W_OK):
        raise unwritable(output, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def unwritable(output: Path, error: BaseException) -> InputError:
    """The error for an output that cannot be written."""
    return InputError(
        f"{output!s:.200} cannot be written "
        f"({getattr(error, 'strerror', None) or error}). Free some disk space, or "
        "choose another place."
    )


def swap_in(fresh: Path, folder: Path) -> Path | None:
    """Replaces a folder by a complete one on the same disk.

    Args:
        fresh: The complete folder.
        folder: Its new name.

    Returns:
        The new path of the old folder; None if there was none.

    Raises:
        OSError: Renaming failed. The old folder is in its place.
    """
    if not folder.exists():
        os.rename(fresh, folder)
        return None
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
    try:
        os.rename(folder, old)
        os.rename(fresh, folder)
    except BaseException:
        if not folder.exists():
            os.rename(old, folder)
        elif fresh.exists():  # the first rename failed
            os.rmdir(old)
        raise
    return old


def sync(path: Path) -> None:
    """Flushes a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_disk_full(error: BaseException) -> bool:
    """Whether an exception of any library means a full disk."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return True
    # safetensors and NumPy report it in words, torch by the name of its writer.
    words = ("No space left", " requested and ", "PytorchStreamWriter", "inline_container")
    return any(word in str(error) for word in words)
