"""Where words go: results to stdout, progress and errors to stderr."""

import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
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
from rich.table import Table

from budgetrec.cli.progress_lines import ProgressLines, StageState
from budgetrec.training.tracking import Stages


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


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, words: Collection[str] = ()) -> None:
    """Print rows under a head; the first column and those in `words` are words, the others numbers."""
    table = Table(box=None, pad_edge=False, show_header=any(head))
    for place, name in enumerate(head):
        left = place == 0 or name in words
        table.add_column(name, justify="left" if left else "right", no_wrap=place < 2)
    for row in rows:
        table.add_row(*row)
    stdout.print(table)


def progress_display(*columns: ProgressColumn) -> Progress:
    """Make a display on stderr that a terminal sees while it lasts, and a file never: that has lines."""
    return Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal)


@contextmanager
def stages() -> Iterator[Stages]:
    """Show the stage a command is in and its time; call what this yields to name the next stage."""
    if not stderr.is_terminal:
        with ProgressLines(stderr) as lines:
            yield _StageLines(lines)
        return
    text = TextColumn("{task.description}", markup=False)
    with progress_display(SpinnerColumn(), text, TimeElapsedColumn()) as progress:
        yield _StageSpinner(progress)


class _StageLines(Stages):
    """Writes stages into a log."""

    def __init__(self, lines: ProgressLines) -> None:
        self._lines, self._state = lines, StageState("starting")

    def __call__(self, name: str) -> None:
        self._state = StageState(name)
        self._lines.stage(name, self._state)

    def progress(self, done: int, total: int) -> None:
        self._state.progress(done, total)


class _StageSpinner(Stages):
    """Shows stages on a terminal."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._name = progress, "starting"
        self._task = progress.add_task(self._name, total=None)

    def __call__(self, name: str) -> None:
        self._name = name
        self._progress.update(self._task, description=name)

    def progress(self, done: int, total: int) -> None:
        share = f"{done / max(total, 1):.0%}"
        self._progress.update(self._task, description=f"{self._name}: {share}")


@contextmanager
def counted(description: str, total: int) -> Iterator[Callable[..., None]]:
    """Show a bar over `total` pieces of work; call what this yields when one more, or several, are done."""
    if not stderr.is_terminal:
        with ProgressLines(stderr) as lines:
            yield _counter(lines, description, total)
        return
    with progress_display(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    ) as progress:
        task = progress.add_task(description, total=total)
        yield lambda done=1: progress.advance(task, done)


def _counter(lines: ProgressLines, description: str, total: int) -> Callable[..., None]:
    state, count = StageState(description), 0

    def advance(done: int = 1) -> None:
        nonlocal count
        count += done
        state.progress(count, total)

    advance(0)
    lines.stage(f"{description}: {total:,} to do", state)
    return advance


@contextmanager
def download_bar(description: str) -> Iterator["DownloadBar"]:
    """Show bytes, speed and time left of a download."""
    with progress_display(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    ) as progress:
        yield DownloadBar(progress, progress.add_task(description, total=None))


class DownloadBar:
    """Follows a download through the four calls that pooch makes."""

    def __init__(self, progress: Progress, task: Any) -> None:
        self._progress = progress
        self._task = task

    @property
    def total(self) -> int:
        """How many bytes to expect."""
        return int(self._progress.tasks[0].total or 0)

    @total.setter
    def total(self, count: int) -> None:
        self._progress.update(self._task, total=count)

    def update(self, n: int) -> None:
        """Count `n` more bytes."""
        self._progress.advance(self._task, n)

    def reset(self) -> None:
        """Start again."""
        self._progress.reset(self._task)

    def close(self) -> None:
        """Nothing to do: the bar goes with its context."""
