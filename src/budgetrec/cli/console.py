"""Where words go: results to stdout, progress and errors to stderr."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

# Plain text may hold square brackets and numbers (item ids, paths): no markup, no highlighting.
stdout = Console(highlight=False, markup=False, emoji=False)
stderr = Console(stderr=True, highlight=False, markup=False, emoji=False)


def print_json(result: dict[str, Any]) -> None:
    """Print one JSON object on stdout, and nothing else."""
    sys.stdout.write(json.dumps(result, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def print_error(message: str) -> None:
    """Print one sentence on stderr, never wrapped, so that it can be searched for."""
    stderr.print(f"budgetrec: {message}", soft_wrap=True, style="red")


@contextmanager
def stages() -> Iterator["Stages"]:
    """Show the stage a command is in, with the time it takes, while the terminal watches."""
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=stderr,
        transient=True,
        disable=not stderr.is_terminal,
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
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=stderr,
        transient=True,
        disable=not stderr.is_terminal,
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
