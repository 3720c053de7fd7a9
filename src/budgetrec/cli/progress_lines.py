"""What a log sees of long work, where a terminal sees a bar: a line for each stage, and one a minute."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Self

from rich.console import Console

from budgetrec.display.words import as_seconds

QUIET_SECONDS = 2.0  # work that is done, or refused, by then writes no lines at all
SECONDS_BETWEEN = 60.0


class ProgressLines:
    """Writes lines that begin with the time since the work began, from a thread of its own."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._held: list[str] | None = [] if QUIET_SECONDS else None  # lines of the quiet seconds
        self._state: Callable[[], str] = str

    def __enter__(self) -> Self:
        self._begin = self._last = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def stage(self, name: str, state: Callable[[], str]) -> None:
        """Write that a stage begins; `state` says each minute how far it is."""
        with self._lock:
            self._state = state
            self._add(name)

    def _add(self, text: str) -> None:
        self._last = time.monotonic()
        line = f"{timedelta(seconds=int(self._last - self._begin))} {text}"
        if self._held is None:
            self._console.print(line)
        else:
            self._held.append(line)

    def _write(self) -> None:
        if self._stop.wait(QUIET_SECONDS):
            return
        with self._lock:
            for line in self._held or []:
                self._console.print(line)
            self._held = None
        while not self._stop.wait(max(0.0, self._last + SECONDS_BETWEEN - time.monotonic())):
            with self._lock:
                if time.monotonic() >= self._last + SECONDS_BETWEEN:
                    self._add(self._state())


class StageState:
    """Says how far a stage is: its share, speed and time left where these are known."""

    def __init__(self, name: str) -> None:
        self._name, self._begin = name, time.monotonic()
        self._done: tuple[int, int] | None = None

    def progress(self, done: int, total: int) -> None:
        """Take down that `done` of `total` pieces of work are done."""
        self._done = done, total

    def __call__(self) -> str:
        """Return it as a sentence without its end."""
        if self._done is None:
            return f"still {self._name}"
        done, total = self._done
        seconds = time.monotonic() - self._begin
        told = f"{self._name}: {done:,} of {total:,} ({done / max(total, 1):.0%})"
        if not done:
            return told
        speed, left = done / max(seconds, 1e-9), as_seconds(seconds / done * (total - done))
        return f"{told}, {speed:{',.0f' if speed >= 10 else '.2g'}} a second, {left} left"
