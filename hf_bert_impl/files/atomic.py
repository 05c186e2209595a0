"""Files and folders that appear when they are complete, and not before."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: What the names of half-written files begin with; those of a killed process stay.
PARTIAL = ".partial-"


@contextlib.contextmanager
def atomic_files(folder: Path) -> Iterator[Path]:
    """A temporary folder whose files are moved into another one at the end.

    Each file is replaced at once, and other files of the folder stay. If anything goes wrong
    before, the folder is left as it was.

    Args:
        folder: Where the files are to be; it is made if it is missing.

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
                folder.rmdir()  # only where nothing was moved into it


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary name for one file, which takes its place at the end, as in `atomic_files`.

    Args:
        path: Where the file is to be.

    Yields:
        The temporary name, with the same ending.
    """
    with atomic_files(path.parent) as fresh:
        yield fresh / path.name


def swap_in(fresh: Path, folder: Path) -> Path | None:
    """Puts a complete folder in another one's place; nothing of that one is deleted.

    Args:
        fresh: The complete folder, on the same disk.
        folder: The name that it gets.

    Returns:
        Where the old folder is now, beside the new one; None if there was none.

    Raises:
        OSError: It cannot be renamed. The old folder is in its place then.
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
        elif fresh.exists():  # not even the first was done
            os.rmdir(old)
        raise
    return old


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk and outlive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_disk_full(error: BaseException) -> bool:
    """Whether an exception, of whatever library, says that no space is left."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    # safetensors reports it in words only, and torch by the place in its code that could not write.
    words = ("No space left", "PytorchStreamWriter", "inline_container")
    return any(word in str(error) for word in words)
