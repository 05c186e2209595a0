"""Blocks of memory that glibc's `malloc` keeps, so that the CPU does not fetch them anew.

Memory freed at the end of the heap goes back to the system above a threshold, and each of its pages
(4 KiB) is a page fault when it is wanted again: thousands in every pass. The threshold is twice the
largest block that was mapped for itself and freed so far, of at most 32 MiB (the "dynamic mmap
threshold" of `mallopt(3)`): it starts at 256 KiB and otherwise depends on what ran before.
"""

import sys

import torch

#: Larger blocks are always mapped for themselves, and go back to the system after each use.
LARGEST_KEPT = 32 << 20
#: What a layer takes at once. Beyond it the feed-forward sub-layer is computed in slices.
LARGEST_BLOCK = 24 << 20


def keep_freed_memory() -> None:
    """Raises that threshold to 64 MiB, as freeing any tensor of 32 MiB does.

    The block is never touched, so it takes no memory and a few microseconds. Other systems and
    other allocators have their own ways, and nothing changes.
    """
    if sys.platform == "linux":
        # A storage: `torch.device("meta")` and modes have no part in it.
        torch.UntypedStorage(LARGEST_KEPT - (64 << 10), device="cpu")
