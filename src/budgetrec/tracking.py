"""Who follows a run while it goes: a watcher that shows it, and a tracker that writes TensorBoard events."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from budgetrec.errors import TrainingError


class Watcher:
    """Hears of every step and evaluation; this one says nothing."""

    @contextmanager
    def watching(self, total_steps: int | None, seconds: float | None) -> Iterator[None]:
        """Surround the loop; the run ends after so many steps or seconds, where that is known."""
        yield

    def step(
        self, *, step: int, seconds: float, examples: int, targets: int, loss: float, peak_bytes: int
    ) -> None:
        """Hear that a step is done, and what the run has seen so far."""

    def evaluation(self, row: dict[str, Any]) -> None:
        """Hear what an evaluation found."""


class Tracker:
    """Writes each evaluation as TensorBoard events, if that is wanted."""

    def __init__(self, folder: Path, *, tensorboard: bool) -> None:
        self._writer: Any = None
        self._folder = folder / "tensorboard"
        if tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise TrainingError(
                    "TensorBoard is not installed. Install budgetrec[tensorboard] or leave out --tensorboard."
                ) from None
            self._make = SummaryWriter

    def write(self, row: dict[str, Any]) -> None:
        """Write a row of metrics."""
        if not hasattr(self, "_make"):
            return
        if self._writer is None:
            self._writer = self._make(str(self._folder))
        for name, value in row.items():
            if isinstance(value, float):
                self._writer.add_scalar(name, value, row["step"])
        self._writer.flush()

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()
