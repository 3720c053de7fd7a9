"""Seconds that a piece of work takes, apart from those that its threads wait for a processor.

Other programs slow a step down mostly by taking its processor. Linux counts for each thread how long it was
ready to run and was not let; taking that off gives about what the step takes on an idle machine. Elsewhere
nothing is taken off.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TASKS = Path("/proc/self/task")  # a folder for each thread
_MOST = 0.95  # of the elapsed time that may have been waiting; counters are read one after another


@dataclass
class QuietClock:
    """Times pieces of work, and remembers how much of the elapsed time was waiting for a processor."""

    elapsed: float = 0.0
    waited: float = 0.0

    @property
    def busy_share(self) -> float:
        """The share of the time in which other work had the processor."""
        return self.waited / self.elapsed if self.elapsed else 0.0

    def time(self, work: Callable[[], object]) -> float:
        """Do a piece of work; return its seconds without those in which it waited for a processor."""
        before, begin = _waits(), time.perf_counter()
        work()
        elapsed = time.perf_counter() - begin
        after = _waits()
        # Threads of one step wait for each other, so the one that waited longest held them all up.
        waited = max((seconds - before.get(task, 0.0) for task, seconds in after.items()), default=0.0)
        waited = min(max(waited, 0.0), _MOST * elapsed)
        self.elapsed += elapsed
        self.waited += waited
        return elapsed - waited


def _waits() -> dict[str, float]:
    """Return how long each thread of this process has waited for a processor, or nothing if unknown."""
    found = {}
    for task in _TASKS.iterdir() if _TASKS.is_dir() else ():
        with suppress(OSError, IndexError, ValueError):  # the thread has ended, or the kernel does not count
            found[task.name] = int((task / "schedstat").read_bytes().split()[1]) / 1e9
    return found
