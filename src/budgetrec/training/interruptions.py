"""What may interrupt a run: a person who presses Ctrl-C, and memory that runs out."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch

from budgetrec.errors import TrainingError

_OUT_OF_MEMORY = ("allocate memory", "out of memory", "not enough memory", "storage size")


@contextmanager
def told_when_memory_runs_out() -> Iterator[None]:
    """Turn a failed allocation, in whatever words, into one sentence."""
    try:
        yield
    except (MemoryError, RuntimeError, torch.OutOfMemoryError) as error:
        words = str(error).lower()
        if isinstance(error, RuntimeError) and not any(part in words for part in _OUT_OF_MEMORY):
            raise
        raise TrainingError(
            "the run needs more memory than there is. Lower --dim, --batch-size, --num-negatives or "
            "--max-length, or raise --micro-batches."
        ) from error


@contextmanager
def polite_interrupts() -> Iterator[Callable[[], bool]]:
    """Take note of Ctrl-C and SIGTERM instead of stopping in the middle of a step.

    A second one stops at once.
    """
    noted: list[int] = []

    def note(signum: int, frame: FrameType | None) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(signum)

    if threading.current_thread() is not threading.main_thread():  # signals reach the main thread only
        yield lambda: False
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(noted)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
