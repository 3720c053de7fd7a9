"""Start commands in processes that can be killed, and judge how they ended.

A forked child costs milliseconds where a new process imports for seconds. Its parent must never have used a
library that keeps threads, so whatever reads data or computes happens in a child (`in_child`).
"""

import contextlib
import faulthandler
import importlib
import io
import json
import os
import pkgutil
import random
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")
TIMEOUT = 180.0  # seconds after which a command hangs; the slowest takes 13 on an idle core
_TOLD_BYTES = 200_000


class Fault(StrEnum):
    """What must not happen."""

    LOST = "lost"  # a result is gone, damaged, or not what an undisturbed run gives
    LEFT = "left behind"  # something half-written stays
    TRACEBACK = "traceback"  # or a panic, a crash, or an error that is no sentence
    HANG = "hang"


@dataclass(frozen=True)
class Ended:
    """How a process ended; a negative code is the signal that ended it, None means that it never did."""

    code: int | None
    told: str
    seconds: float
    killed: bool = False  # by us

    def fault(self) -> tuple[Fault, str] | None:
        """Say what is wrong with how it ended: done, killed by us or refused in a sentence are right."""
        if self.code is None:
            return Fault.HANG, self.told
        if self.killed or (self.code == 0 and not is_trace(self.told)):
            return None
        if self.code == 2 and is_sentence(self.told):
            return None
        return Fault.TRACEBACK, f"exit {self.code}: {self.told}"


def is_trace(told: str) -> bool:
    """Whether words hold a traceback, a panic or a fault that a command owns up to."""
    return any(words in told for words in ("Traceback", "panicked at", "a bug in budgetrec itself"))


def is_sentence(told: str) -> bool:
    """Whether a refusal is one line, after progress."""
    lines = [line for line in told.splitlines() if line.startswith("budgetrec: ")]
    return len(lines) == 1 and told.rstrip().endswith(lines[0].rstrip()) and not is_trace(told)


def import_everything() -> None:
    """Import all of budgetrec and what its commands import, so that children need not."""
    import budgetrec.cli

    for module in pkgutil.walk_packages(budgetrec.__path__, "budgetrec."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in ("altair", "vl_convert", "jinja2", "scipy.optimize"):
        importlib.import_module(name)
    with contextlib.redirect_stdout(io.StringIO()):
        budgetrec.cli.run(["data", "list"])  # reading a command line imports, too


def fork(work: Callable[[], int], output: Path) -> int:
    """Run `work` in a child of its own group, with what it prints in a file; its result is the exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        handle = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        faulthandler.enable()  # so that what hangs says where
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def command(arguments: list[str]) -> Callable[[], int]:
    """Return the work of a command line, as its entry point does it."""

    def work() -> int:
        from budgetrec import cli

        sys.argv = ["budgetrec", *arguments]
        signal.signal(signal.SIGTERM, cli._interrupt)
        return cli.run(arguments)

    return work


def start_real(arguments: list[str], output: Path) -> int:
    """Start a command as a person does."""
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "budgetrec", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    process.returncode = 0  # who waits for it is `wait`
    return process.pid


def wait(pid: int, output: Path, *, kill_after: float | None = None, timeout: float = TIMEOUT) -> Ended:
    """Wait until a process ends, or kill it after some seconds; its own children end with it."""
    begin, killed = time.monotonic(), False
    watched = select.poll()
    handle = os.pidfd_open(pid)
    watched.register(handle, select.POLLIN)
    try:
        done = watched.poll(1000 * (timeout if kill_after is None else kill_after))
        if not done:
            killed = kill_after is not None
            if not killed:  # where it hangs, its threads say
                os.kill(pid, signal.SIGABRT)
                watched.poll(2000)
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(handle)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    told = output.read_bytes()[-_TOLD_BYTES:].decode("utf-8", "replace")
    # A child may also have killed itself, at an operation that we chose.
    landed = status == -signal.SIGKILL and (killed or kill_after is None)
    code = None if not done and not killed else status
    return Ended(code, told, time.monotonic() - begin, killed=landed and code is not None)


def forked(arguments: list[str], output: Path, before: Callable[[], object] = lambda: None) -> int:
    """Start a command in a forked child; `before` happens in the child first."""

    def work() -> int:
        before()
        return command(arguments)()

    return fork(work, output)


def in_child(work: Callable[[], _T], folder: Path) -> _T:
    """Return what `work` gives, which JSON must be able to hold, from a child."""
    answer, output = folder / "answer.json", folder / "answer.txt"
    answer.unlink(missing_ok=True)

    def write() -> int:
        answer.write_text(json.dumps(work()))
        return 0

    ended = wait(fork(write, output), output)
    if ended.code != 0:
        raise RuntimeError(ended.told)
    found: _T = json.loads(answer.read_text())
    return found


class Operations:
    """Counts what a process does to files under a folder, and kills it before one of them."""

    _EVENTS = frozenset(
        ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.truncate", "os.link", "os.symlink")
    )

    def __init__(self, folder: Path, *, kill_at: int | None = None, count_in: Path | None = None) -> None:
        self._folder, self._kill_at, self._count_in = str(folder), kill_at, count_in
        self._seen = 0

    def watch(self) -> None:
        """Begin, in the process that is to be watched; there is no end."""
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        writes = (
            event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        )
        if not writes and event not in self._EVENTS:
            return
        if not str(arguments[0]).startswith(self._folder):
            return
        if self._seen == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self._seen += 1
        if self._count_in is not None:
            count = os.open(self._count_in, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.write(count, str(self._seen).encode())
            os.close(count)


def seeded(identity: str) -> random.Random:
    """Return the generator of a trial: its identity is all that decides it."""
    return random.Random(identity)  # noqa: S311 - chance, not secrets
