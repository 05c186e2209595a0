"""Freed memory that glibc's `malloc` keeps for the next pass, in commands and their processes.

Above a threshold, `malloc` returns freed memory at the end of the heap to the system. Each page
(4 KiB) is then a page fault at its next use: thousands per pass. The threshold is twice the largest
freed block that had its own mapping, of at most 32 MiB (the "dynamic mmap threshold" of
`mallopt(3)`). It starts at 256 KiB.
"""

import ctypes
import sys
from contextlib import suppress

#: Larger blocks always have their own mapping, which is returned after each use.
LARGEST_KEPT = 32 << 20


def keep_freed_memory() -> None:
    """Raises this threshold to 64 MiB for the whole process, as freeing any block of 32 MiB does.

    The block is never written, so this takes no memory and a few microseconds. A threshold in
    glibc's own variables (`MALLOC_TRIM_THRESHOLD_`) takes precedence. It has no effect on
    other systems and allocators.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):  # no C library that can be loaded
        library = ctypes.CDLL(None)
        allocate, free = library.malloc, library.free
        allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        free.restype, free.argtypes = None, [ctypes.c_void_p]
        free(allocate(LARGEST_KEPT - (64 << 10)))
