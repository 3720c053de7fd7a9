"""What a person sees of a run while it trains."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from budgetrec.cli.console import progress_display, stages, stderr
from budgetrec.cli.progress_lines import ProgressLines
from budgetrec.display.words import as_seconds
from budgetrec.training.tracking import Watcher
from budgetrec.units import format_bytes


class TrainingBar(Watcher):
    """Shows a bar on a terminal and a line a minute in a log, and everywhere one per evaluation or change."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._threads_chosen = "threads" in settings or "OMP_NUM_THREADS" in os.environ
        self._bar = progress_display(
            TextColumn("step {task.fields[step]:,}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self._total_steps: int | None = None
        self._seconds: float | None = None
        self._state = "trying the first step"

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Name the stage before the first step."""
        with stages() as stage:
            stage("making the model and evaluating it")
            yield

    @contextmanager
    def watching(self, total_steps: int | None, seconds: float | None) -> Iterator[None]:
        """Show a bar or lines, and a hint where threads would get in each other's way."""
        # Threads that wait for each other can take a hundred times as long.
        if not self._threads_chosen and os.getloadavg()[0] > 0.75 * (os.cpu_count() or 1):
            stderr.print("Other work keeps this machine busy; --threads 1 may be many times faster.")
        self._total_steps, self._seconds = total_steps, seconds
        if not stderr.is_terminal:
            with ProgressLines(stderr) as lines:
                lines.stage("training", lambda: self._state)
                yield
            return
        with self._bar:
            self._task = self._bar.add_task(
                "", total=1.0 if total_steps or seconds else None, step=0, text=""
            )
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
        """Say how far the run is; the end that is nearer, in steps or seconds, decides."""
        shares = [step / self._total_steps] if self._total_steps else []
        shares += [seconds / self._seconds] if self._seconds else []
        share = min(1.0, max(shares, default=0.0))
        speed = f"{examples / max(seconds, 1e-9):,.0f} sequences a second"
        text = f"{speed}, loss {loss:.3f}, training adds {format_bytes(training_bytes)}"
        if stderr.is_terminal:
            self._bar.update(self._task, completed=share, step=step, text=text)
            return
        told = f"step {step:,}"
        if share:
            left = as_seconds(seconds / share - seconds)
            told += f" of {self._total_steps:,}" if self._total_steps else ""
            told += f" ({share:.0%}), {left} left"
        self._state = f"{told}, {text}"

    def change(self, sentence: str) -> None:
        """Print the change."""
        stderr.print(sentence)

    def evaluation(self, row: Mapping[str, float | None]) -> None:
        """Write a line."""
        loss = "" if row["train_loss"] is None else f"train loss {row['train_loss']:.4f}  "
        stderr.print(
            f"step {row['step']:>7,}  epoch {row['epoch']:6.1f}  {row['seconds']:8.1f} s  {loss}"
            f"val loss {row['val_loss']:.4f}  ndcg@10 {row['ndcg@10']:.4f}"
        )
