"""The small world in which a job happens, and how each job ends undisturbed."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.torture.jobs import SCENES, Commands, Job
from tests.torture.prints import fingerprint
from tests.torture.processes import (
    Ended,
    Fault,
    Operations,
    forked,
    in_child,
    start_real,
    wait,
)

DISK_BYTES = 64 << 20
Prints = dict[str, str]


@dataclass(frozen=True)
class Undisturbed:
    """How a job ends when nothing disturbs it, and how long it takes."""

    before: Prints  # of what it replaces
    after: Prints
    seconds: float  # in a forked child
    operations: int  # on files


class Scene:
    """A folder `here` in which one job after another happens, on a disk of its own if we may mount one."""

    def __init__(self, work: Path, *, mounted: bool) -> None:
        self.work, self.mounted = work, mounted
        self.disk = work / "disk"
        self.here = self.disk / "here"
        self.output = work / "told.txt"
        self._starts = work / "starts"
        self._starts.mkdir()
        self._known: dict[str, Undisturbed] = {}

    def reset(self, start: str) -> None:
        """Put a scene in its place, made by its commands if it was not made yet."""
        kept = self._starts / start
        if not kept.exists():
            came_from, lines = SCENES[start]
            if came_from is None:
                self._clear()
                self.here.mkdir()
            else:
                self.reset(came_from)
            for line in lines:
                self.must(line.format(here=self.here).split())
            shutil.copytree(self.here, kept)
        self._clear()
        shutil.copytree(kept, self.here)

    def run(self, arguments: list[str]) -> Ended:
        """Run a command to its end, in a forked child."""
        return wait(forked(arguments, self.output), self.output)

    def must(self, arguments: list[str]) -> Ended:
        """Run a command that nothing disturbs and that has to work."""
        ended = self.run(arguments)
        if ended.code != 0:
            raise RuntimeError(f"budgetrec {' '.join(arguments)} ended with {ended.code}: {ended.told}")
        return ended

    def prints(self, name: str = "") -> Prints:
        """Return what is there, or in a part of it."""
        path = self.here / name if name else self.here
        return in_child(lambda: fingerprint(path, self.here), self.work)

    def undisturbed(self, job: Job) -> Undisturbed:
        """Return how a job ends undisturbed."""
        if job.name not in self._known:
            self.reset(job.start)
            before = self.prints(job.replaces) if job.replaces else {}
            count = self.work / "operations"
            watcher = Operations(self.here, count_in=count)
            ended = wait(forked(job.command(self.here), self.output, watcher.watch), self.output)
            if ended.code != 0:
                raise RuntimeError(f"{job.name} ended with {ended.code}: {ended.told}")
            after = self.prints()
            self._known[job.name] = Undisturbed(before, after, ended.seconds, int(count.read_text()))
        return self._known[job.name]

    def real_seconds(self, job: Job) -> float:
        """Return how long a job takes as a process of its own, imports and all."""
        self.reset(job.start)
        ended = wait(start_real(job.command(self.here), self.output), self.output)
        return ended.seconds

    def judge(self, job: Job, *, recovery: Commands | None = None) -> tuple[Fault, str] | None:
        """See that nothing that was there is lost, recover, and compare with the undisturbed end."""
        known = self.undisturbed(job)
        if job.replaces and not job.is_new(self.here):
            try:
                now = self.prints(job.replaces)
            except RuntimeError as error:
                return Fault.LOST, f"what stood in {job.replaces} cannot be read: {error}"
            new = {name: held for name, held in known.after.items() if name.split("/")[0] == job.replaces}
            if now not in (known.before, without(new, job.replaces)):
                return Fault.LOST, f"what stood in {job.replaces} is neither old nor new: {sorted(now)}"
        for arguments in job.recovery(self.here) if recovery is None else recovery:
            ended = self.run(arguments)
            fault = ended.fault()
            if fault is not None:
                return fault
            if ended.code != 0:
                return Fault.LOST, f"budgetrec {' '.join(arguments)} no longer works: {ended.told}"
        return self.compare(known.after)

    def compare(self, wanted: Prints) -> tuple[Fault, str] | None:
        """Compare what is there with what should be."""
        try:
            now = self.prints()
        except RuntimeError as error:
            return Fault.LOST, f"the result cannot be read: {error}"
        lost = [name for name in wanted if now.get(name) != wanted[name]]
        if lost:
            seen = "is missing" if lost[0] not in now else "differs"
            return Fault.LOST, f"{lost[0]} {seen} ({len(lost)} files)"
        left = sorted(now.keys() - wanted.keys())
        return (Fault.LEFT, f"{left[0]} ({len(left)} files)") if left else None

    def half_written(self) -> list[str]:
        """Return temporary files and folders."""
        return sorted(str(path.relative_to(self.here)) for path in self.here.rglob("*.partial-*"))

    def unasked(self, job: Job) -> list[str]:
        """Return what a refused job has left: it leaves what was there, or all of its results, whole."""
        names = {path.name for path in self.here.iterdir()}
        started = {path.name for path in (self._starts / job.start).iterdir()}
        ended = {name.split("/")[0] for name in self.undisturbed(job).after}
        return self.half_written() or ([] if names in (started, ended) else sorted(names - started))

    def _clear(self) -> None:
        shutil.rmtree(self.here, ignore_errors=True)


def without(prints: Prints, name: str) -> Prints:
    """Return prints without the folder itself, as those of the folder are."""
    return {path: held for path, held in prints.items() if path != name}


@contextmanager
def open_scene(work: Path) -> Iterator[Scene]:
    """Make the folder of the scenes, on a small disk of its own where we may mount one, and clean up."""
    lock = (work / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"another campaign works in {work}. Wait until it is done, or pass another --work.")
    disk = work / "disk"
    unmount(disk)
    for name in ("disk", "starts"):
        shutil.rmtree(work / name, ignore_errors=True)
    disk.mkdir()
    mounted = mount(disk)
    try:
        yield Scene(work, mounted=mounted)
    finally:
        if mounted:
            unmount(disk)
        lock.close()


def mount(folder: Path) -> bool:
    """Mount a small disk in memory; say whether that was to be had."""
    if os.geteuid() != 0:
        return False
    line = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "budgetrec-torture", str(folder)]
    return subprocess.run(line, capture_output=True, check=False).returncode == 0


def unmount(folder: Path) -> None:
    """Take away what an earlier campaign, if it was killed, left mounted."""
    if folder.is_mount():
        subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)  # noqa: S607
