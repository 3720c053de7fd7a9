"""Where words go: results to stdout, progress and errors to stderr."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


class _PlainConsole(Console):
    """A console for text that may hold brackets and numbers (ids, paths): no markup, no highlighting.

    Lines are never wrapped, and in a pipe tables are as wide as they need.
    """

    def __init__(self, *, stderr: bool) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)
        if not self.is_terminal:
            self.width = 200


stdout = _PlainConsole(stderr=False)
stderr = _PlainConsole(stderr=True)


def print_json(result: dict[str, Any]) -> None:
    """Print one JSON object on stdout, and nothing else."""
    sys.stdout.write(json.dumps(result, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def print_error(message: str) -> None:
    """Print one sentence on stderr, never wrapped, so that it can be searched for."""
    stderr.print(f"budgetrec: {' '.join(message.splitlines())}", style="red")


def _progress(*columns: ProgressColumn) -> Progress:
    """Make a display on stderr that a terminal sees while it lasts, and a file never."""
    return Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal)


@contextmanager
def stages() -> Iterator["Stages"]:
    """Show the stage a command is in, with the time it takes, while the terminal watches."""
    progress = _progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
    )
    with progress:
        yield Stages(progress)


class Stages:
    """Calling it names the next stage."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=None)

    def __call__(self, name: str) -> None:
        """Move on to the stage called `name`."""
        self._progress.update(self._task, description=name)


@contextmanager
def counted(description: str, total: int) -> Iterator["Counter"]:
    """Show a bar over `total` pieces of work with the time left."""
    progress = _progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with progress:
        yield Counter(progress, progress.add_task(description, total=total))


class Counter:
    """Calling it says that pieces of work are done."""

    def __init__(self, progress: Progress, task: Any) -> None:
        self._progress = progress
        self._task = task

    def __call__(self, done: int = 1) -> None:
        """Say that `done` more pieces are finished."""
        self._progress.advance(self._task, done)


@contextmanager
def training_bar(total_steps: int | None, seconds: float | None) -> Iterator["TrainingBar"]:
    """Show step, speed, loss, peak memory and time left of a run that ends after so many steps or seconds."""
    progress = _progress(
        TextColumn("step {task.fields[step]:,}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[text]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with progress:
        yield TrainingBar(progress, total_steps, seconds)


class TrainingBar:
    """Follows a run; the end that is nearer, in steps or seconds, decides how full it is."""

    def __init__(self, progress: Progress, total_steps: int | None, seconds: float | None) -> None:
        self._progress = progress
        self._total_steps = total_steps
        self._seconds = seconds
        known = total_steps is not None or seconds is not None
        self._task = progress.add_task("training", total=1.0 if known else None, step=0, text="")

    def update(self, *, step: int, seconds: float, text: str) -> None:
        """Say how far the run is."""
        shares = [step / self._total_steps] if self._total_steps else []
        shares += [seconds / self._seconds] if self._seconds else []
        self._progress.update(self._task, completed=max(shares, default=0.0), step=step, text=text)


@contextmanager
def download_bar(description: str) -> Iterator["DownloadBar"]:
    """Show bytes, speed and time left of a download."""
    progress = _progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with progress:
        yield DownloadBar(progress, progress.add_task(description, total=None))


class DownloadBar:
    """Follows a download through the four calls that pooch makes."""

    def __init__(self, progress: Progress, task: Any) -> None:
        self._progress = progress
        self._task = task

    @property
    def total(self) -> int:
        """How many bytes will come."""
        return int(self._progress.tasks[0].total or 0)

    @total.setter
    def total(self, count: int) -> None:
        self._progress.update(self._task, total=count)

    def update(self, n: int) -> None:
        """Say that `n` more bytes came."""
        self._progress.advance(self._task, n)

    def reset(self) -> None:
        """Begin anew."""
        self._progress.reset(self._task)

    def close(self) -> None:
        """Nothing to do: the bar goes with its context."""
