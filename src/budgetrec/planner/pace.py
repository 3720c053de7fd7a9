"""Training at another pace than was planned: it is said once, with what to do about it."""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import median

from budgetrec.training.tracking import Watcher

_SLOW = 2.0  # times the planned seconds per step that are worth a word
_STEPS = 20  # that are looked at; fewer where they take long
_FEWEST, _LONG = 3, 30.0


class PlannedPace(Watcher):
    """Passes everything on to another watcher, and compares the seconds per step with the planned ones."""

    def __init__(self, watcher: Watcher, planned_seconds: float) -> None:
        self._watcher, self._planned = watcher, planned_seconds
        self._last: float | None = None
        self._taken: deque[float] = deque(maxlen=_STEPS)
        self._done = False

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Surround what comes before the first step."""
        with self._watcher.starting():
            yield

    @contextmanager
    def watching(self, total_steps: int | None, seconds: float | None) -> Iterator[None]:
        """Surround the loop."""
        with self._watcher.watching(total_steps, seconds):
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
        """Pass a step on, and look at the last ones."""
        self._watcher.step(
            step=step,
            seconds=seconds,
            examples=examples,
            targets=targets,
            loss=loss,
            training_bytes=training_bytes,
            peak_bytes=peak_bytes,
        )
        if self._last is not None:
            self._taken.append(seconds - self._last)
        self._last = seconds
        self._look(step)

    def _look(self, step: int) -> None:
        enough = len(self._taken) == _STEPS or (len(self._taken) >= _FEWEST and sum(self._taken) > _LONG)
        if self._done or not enough:
            return
        taken = median(self._taken)
        if taken > _SLOW * self._planned:
            self._done = True
            self._watcher.change(
                f"step {step:,}: steps take {taken * 1e3:,.0f} ms instead of the planned "
                f"{self._planned * 1e3:,.0f} ms. If other work keeps this machine busy, wait for its end or "
                "pass --threads 1; if not, plan again."
            )

    def change(self, sentence: str) -> None:
        """Pass a change on; steps that are taken in another way have another pace."""
        self._done = True
        self._watcher.change(sentence)

    def evaluation(self, row: Mapping[str, float | None]) -> None:
        """Pass an evaluation on."""
        self._watcher.evaluation(row)
