"""Let the memory of a process follow what it has in use.

glibc takes large blocks from the system one by one at first, but each one that is released raises the size
from which it does so, up to 32 MiB. Activations then share one heap, whose holes stay resident: after a few
steps with large parts a process has 1.6 times what its tensors need, and how much depends on chance. With a
fixed threshold of half a MiB large tensors come and go whole, and pay for fresh pages each time: 38% more
processor time with one set of negatives per target (parts of 2,048 positions, k = 72, d = 64), nothing
measurable with one set per sequence at k = 128. So only runs with a budget do this, and the planner while it
times steps.

A loop of one's own is not cut into parts, and a recurrent network makes thousands of small tensors for each
step of it; their holes took up to 55 MiB of 257. There the threshold is 32 KiB, for a third more processor
time with a GRU (700 sequences of 200 items, d = 32) and nothing where tensors are large.
"""

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
LARGE_BYTES = 2**19
LARGE_BYTES_OF_OWN = 2**15  # in a loop of one's own
_KEPT_BYTES = 2**24  # free bytes at the end of the heap that are kept for the next part


def steady_heap(large_bytes: int = LARGE_BYTES) -> None:
    """Hand tensors of `large_bytes` or more back to the system at once; without glibc nothing happens."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, large_bytes)
        libc.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def trim_heap() -> None:
    """Hand free pages of the heap back to the system, also those in its middle; else nothing happens."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
