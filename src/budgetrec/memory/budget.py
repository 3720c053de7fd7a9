"""A budget while training: what is used of it, and what evaluation may take."""

import gc

import torch

from budgetrec.memory.heap import trim_heap
from budgetrec.memory.peaks import peak_bytes, reset_peak, resident_bytes
from budgetrec.ranking.scorer import BLOCK_BYTES

_LEAST_BLOCK = 2**20
_SHARE = 8  # of a small budget, evaluation takes at most one part in eight for its scores


def evaluation_block_bytes(budget_bytes: int | None) -> int:
    """Say how many bytes of scores an evaluation may hold at once.

    >>> evaluation_block_bytes(64 * 2**20) // 2**20, evaluation_block_bytes(None) // 2**20
    (8, 64)
    """
    if budget_bytes is None:
        return BLOCK_BYTES
    share = max(_LEAST_BLOCK, budget_bytes // _SHARE)
    return min(BLOCK_BYTES, 1 << (share.bit_length() - 1))


class MemoryWatch:
    """Counts what a run adds to the process from the moment the watch is made.

    On a GPU that is the allocator's peak, on a CPU the resident size of the process.
    """

    def __init__(self, device: torch.device, budget_bytes: int | None = None) -> None:
        self.device, self.budget_bytes = device, budget_bytes
        reset_peak(device)
        self._baseline = resident_bytes(device)
        self._peak = 0  # before the last reset

    def peak(self) -> int:
        """Return the peak of the process, or of the device's tensors."""
        self._peak = max(self._peak, peak_bytes(self.device))
        return self._peak

    def growth(self) -> int:
        """Return what the run has added at most."""
        return max(0, self.peak() - self._baseline)

    def excess(self) -> int:
        """Return by how many bytes the run is above its budget since the peak was last forgotten, or 0."""
        if self.budget_bytes is None:
            return 0
        return max(0, peak_bytes(self.device) - self._baseline - self.budget_bytes)

    def trim(self) -> None:
        """Hand holes of the heap back before something other than a step needs memory, given a budget."""
        if self.budget_bytes is not None:
            trim_heap()

    def forget_peak(self) -> None:
        """Hand freed memory back and count again, to see whether smaller steps stay within the budget."""
        self.peak()
        release_memory()
        reset_peak(self.device)


def release_memory() -> None:
    """Hand freed memory back to the system, where that is possible."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    trim_heap()
