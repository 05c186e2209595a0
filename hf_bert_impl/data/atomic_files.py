"""Files that appear in a folder when they are complete, and not before."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


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
    fresh = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder))
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


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk and outlive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
