"""What a person sees of a run while it trains."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from budgetrec.cli.console import progress_display, stderr
from budgetrec.training.tracking import Watcher


class TrainingBar(Watcher):
    """Shows a bar on a terminal, and everywhere one line per evaluation or change."""

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

    @contextmanager
    def watching(self, total_steps: int | None, seconds: float | None) -> Iterator[None]:
        """Show a bar, and a hint when threads would get in each other's way."""
        # Threads that wait for each other can take a hundred times as long.
        if not self._threads_chosen and os.getloadavg()[0] > 0.75 * (os.cpu_count() or 1):
            stderr.print("Other work keeps this machine busy; --threads 1 may be many times faster.")
        self._total_steps, self._seconds = total_steps, seconds
        with self._bar:
            self._task = self._bar.add_task(
                "", total=1.0 if total_steps or seconds else None, step=0, text=""
            )
            yield

    def step(
        self, *, step: int, seconds: float, examples: int, targets: int, loss: float, peak_bytes: int
    ) -> None:
        """Move the bar; the end that is nearer, in steps or seconds, decides how full it is."""
        shares = [step / self._total_steps] if self._total_steps else []
        shares += [seconds / self._seconds] if self._seconds else []
        speed = f"{examples / max(seconds, 1e-9):,.0f} seq/s"
        text = f"{speed}  loss {loss:.3f}  peak {peak_bytes / 2**20:,.0f} MiB"
        self._bar.update(self._task, completed=max(shares, default=0.0), step=step, text=text)

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
