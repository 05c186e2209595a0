"""Blocks of memory that glibc's `malloc` keeps, so that the CPU does not fetch them anew.

Memory freed at the end of the heap goes back to the system above a threshold, and each of its pages
(4 KiB) is a page fault when it is wanted again: thousands in every pass. The threshold is twice the
largest block that was mapped for itself and freed so far, of at most 32 MiB (the "dynamic mmap
threshold" of `mallopt(3)`): it starts at 256 KiB and otherwise depends on what ran before.
"""

import ctypes
import sys
from contextlib import suppress

#: Larger blocks are always mapped for themselves, and go back to the system after each use.
LARGEST_KEPT = 32 << 20


def keep_freed_memory() -> None:
    """Raises this threshold to 64 MiB for the whole process, as freeing any block of 32 MiB does.

    The block is never touched, so it takes no memory and a few microseconds. Whoever sets a
    threshold by glibc's own variables (`MALLOC_TRIM_THRESHOLD_`) keeps it. Other systems and other
    allocators have their own ways, and nothing changes.
    """
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):  # no C library that can be loaded
        library = ctypes.CDLL(None)
        allocate, free = library.malloc, library.free
        allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        free.restype, free.argtypes = None, [ctypes.c_void_p]
        free(allocate(LARGEST_KEPT - (64 << 10)))
