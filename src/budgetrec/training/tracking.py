"""Who follows a run while it goes: a watcher that shows it, and a tracker that writes TensorBoard events."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from budgetrec.errors import TrainingError


class Stages:
    """Hears which stage quiet work has come to, and how far that is; this one says nothing."""

    def __call__(self, name: str) -> None:
        """Hear that a stage begins."""

    def progress(self, done: int, total: int) -> None:
        """Hear how many of the stage's pieces of work are done."""


class Watcher:
    """Is told of every step and evaluation; this one does nothing."""

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Surround what comes before the first step: a model is made, tried and evaluated."""
        yield

    @contextmanager
    def watching(self, total_steps: int | None, seconds: float | None) -> Iterator[None]:
        """Surround the loop; `total_steps` or `seconds` say when the run ends, where that is known."""
        yield

    def step(
        self,
        *,
        step: int,
        seconds: float,
        examples: int,
        targets: int,
        loss: float,
        training_bytes: int,
        peak_bytes: int,
    ) -> None:
        """Hear that a step is done, and what the run has seen so far.

        `training_bytes` is what training has added to the process at most, as a budget counts it;
        `peak_bytes` is the largest size of the process.
        """

    def change(self, sentence: str) -> None:
        """Hear, in a sentence, that the run has changed how it takes steps."""

    def evaluation(self, row: Mapping[str, float | None]) -> None:
        """Hear what an evaluation found."""


class Tracker:
    """Writes each evaluation as TensorBoard events, if that is wanted."""

    def __init__(self, folder: Path, *, tensorboard: bool) -> None:
        self._make: Any = None
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

    @contextmanager
    def writing(self, row: Mapping[str, float | None]) -> Iterator[None]:
        """Surround the loop, which begins or resumes after `row`; later events of an old try are dropped."""
        if self._make is None:
            yield
            return
        self._writer = self._make(str(self._folder), purge_step=row["step"])
        try:
            self.write(row)
            yield
        finally:
            self._writer.close()
            self._writer = None

    def write(self, row: Mapping[str, float | None]) -> None:
        """Write a row of metrics, if the loop has begun."""
        if self._writer is not None:
            for name, value in row.items():
                if isinstance(value, float):
                    self._writer.add_scalar(name, value, row["step"])
            self._writer.flush()
