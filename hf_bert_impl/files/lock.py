"""Locks that allow one writer per output."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from hf_bert_impl.errors import InputError

#: Open lock files of this process.
_held: set[int] = set()


@contextlib.contextmanager
def output_lock(output: Path) -> Iterator[bool]:
    """Keeps other runs from writing the same output.

    The lock is on `.NAME.lock` in the same folder, which is deleted at the end. The system releases
    it when the process ends. Missing parent folders are created, and removed at the end if empty.

    Args:
        output: The file or folder to write.

    Yields:
        Whether it is locked: some systems and disks have no locks.

    Raises:
        InputError: Another run is writing it, or its folder is not writable.
    """
    output = Path(os.path.abspath(output))
    place = output.parent.resolve()
    file = place / f".{output.name}.lock"
    if not os.access(place, os.W_OK) and output.is_dir():
        file = output  # such as a mounted folder with a read-only parent
    missing = [path for path in (place, *place.parents) if not path.exists()][::-1]
    with contextlib.ExitStack() as undo:
        try:
            for path in missing:
                path.mkdir(exist_ok=True)
                undo.callback(_remove_empty, path)
            lock = _locked(file)
        except BlockingIOError:
            raise InputError(
                f"Another run is writing {output}. Wait for it, stop it, or choose another output."
            ) from None
        except OSError as error:
            raise unwritable(output, error) from error
        if lock is not None:
            undo.callback(_release, file, lock)
        yield lock is not None


def unwritable(output: Path, error: BaseException) -> InputError:
    """The error for an output that cannot be written."""
    return InputError(
        f"{output!s:.200} cannot be written "
        f"({getattr(error, 'strerror', None) or error}). Free some disk space, or "
        "choose another place."
    )


def _locked(path: Path) -> int | None:
    """The descriptor of a locked file; None if the system or disk has no locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    how = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    while True:
        descriptor = os.open(path, how | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous holder may have deleted it after it was opened here.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    _held.add(descriptor)
                    return descriptor
        except OSError as error:
            os.close(descriptor)
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            return None
        os.close(descriptor)


def _release(file: Path, descriptor: int) -> None:
    if descriptor not in _held:  # a forked process, which has closed it
        return
    if file.is_file() and not file.stat().st_size:  # a file with content is not ours
        # Before it is unlocked: afterwards another run may hold it.
        file.unlink()
    _held.discard(descriptor)
    os.close(descriptor)


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _close_all() -> None:
    # A forked process shares the lock and may outlive a killed parent.
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)
