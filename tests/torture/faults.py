"""Campaigns of faults from outside: kills, a disk that fills, memory that runs out, two processes at once."""

import errno
import os
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.torture.jobs import JOBS, Commands, Job
from tests.torture.processes import (
    Ended,
    Fault,
    Operations,
    forked,
    seeded,
    start_real,
    wait,
)
from tests.torture.record import Trial
from tests.torture.scene import Scene

_PAGE = 4096
_MIB = 1 << 20
# What libraries write when they get no memory; some end the process then, so that no code of ours runs.
_NO_MEMORY = ("memory allocation of", "bad_alloc", "allocate memory", "Out of memory", "panicked at")


def kill_forked(scene: Scene, identity: str) -> Trial:
    """Kill children forked after imports: before an operation on a file, or at a moment."""
    return _kill(scene, identity, real=False)


def kill_real(scene: Scene, identity: str) -> Trial:
    """Kill real processes at a moment after the imports."""
    return _kill(scene, identity, real=True)


def _kill(scene: Scene, identity: str, *, real: bool) -> Trial:
    """Kill a job, and sometimes what goes on with it, too; then go on to the end."""
    chance, job = seeded(identity), JOBS[identity.split("/")[1]]
    known = scene.undisturbed(job)
    whole = _real_seconds(scene, job) if real else 0.0
    scene.reset(job.start)
    landed, commands = 0, [job.command(scene.here)]
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3))):
        if not commands:
            break
        arguments, last = commands[0], 1.1 * chance.random() * known.seconds
        if real:
            pid = start_real(arguments, scene.output)
            ended = wait(pid, scene.output, kill_after=max(0.0, whole - 1.1 * known.seconds) + 1.1 * last)
        elif chance.random() < 0.5:
            ended = wait(forked(arguments, scene.output), scene.output, kill_after=last)
        else:
            watcher = Operations(scene.here, kill_at=chance.randrange(known.operations + 1))
            ended = wait(forked(arguments, scene.output, watcher.watch), scene.output)
        landed += ended.killed
        fault = ended.fault()
        if fault is not None:
            return Trial(identity, max(1, landed), [(str(fault[0]), fault[1], identity)])
        commands = job.recovery(scene.here)
    return _judged(scene, job, identity, landed)


_KNOWN_SECONDS: dict[str, float] = {}


def _real_seconds(scene: Scene, job: Job) -> float:
    if job.name not in _KNOWN_SECONDS:
        _KNOWN_SECONDS[job.name] = scene.real_seconds(job)
    return _KNOWN_SECONDS[job.name]


def fill_disk(scene: Scene, identity: str) -> Trial:
    """Leave a job a few pages of disk; it says so, leaves nothing half-written, and works when there is room.

    Trial i of a job leaves it i pages as long as that is little, so that every write is the one that fails,
    and then a random number. Without a disk of our own, files cannot grow beyond that size instead.
    """
    number, chance, job = int(identity.split("/")[2]), seeded(identity), JOBS[identity.split("/")[1]]
    scene.undisturbed(job)
    scene.reset(job.start)
    room = _PAGE * (number if number < 40 else chance.randrange(600))
    ballast = scene.disk / "ballast"
    if scene.mounted:
        _fill(ballast, room)
        ended = scene.run(job.command(scene.here))
        ballast.unlink()
    else:
        limit = _limiter(resource.RLIMIT_FSIZE, room)
        ended = wait(forked(job.command(scene.here), scene.output, limit), scene.output)
    return _refused(scene, job, identity, ended)


def _fill(ballast: Path, room: int) -> None:
    """Take all of a disk but some bytes."""
    state = os.statvfs(ballast.parent)
    size = state.f_bavail * state.f_bsize - room
    handle = os.open(ballast, os.O_CREAT | os.O_WRONLY)
    try:
        os.posix_fallocate(handle, 0, max(size, 1))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    finally:
        os.close(handle)


def cap_memory(scene: Scene, identity: str) -> Trial:
    """Let a job add only some bytes to its address space.

    A few MiB from the limit polars ends the process or, rarely, waits for ever for threads that it could not
    start. No code of ours runs then, so that counts as a kill, and is noted.
    """
    chance, job = seeded(identity), JOBS[identity.split("/")[1]]
    known = scene.undisturbed(job)
    scene.reset(job.start)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    room = int(_MIB * 2 ** chance.uniform(0, 10))
    limit = _limiter(resource.RLIMIT_AS, pages * _PAGE + room)
    pid = forked(job.command(scene.here), scene.output, limit)
    ended = wait(pid, scene.output, timeout=max(60.0, 5 * known.seconds))
    by_library = any(words in ended.told for words in _NO_MEMORY)
    hangs_in_polars = ended.code is None and "/polars/" in ended.told
    if hangs_in_polars or (by_library and ended.code is not None and ended.code < 0):
        trial = _judged(scene, job, identity, 1)
        return Trial(identity, 1, trial.faults, {f"{'hung' if hangs_in_polars else 'ended'} in a library": 1})
    if by_library and ended.code == 2:  # what is ours to write is the sentence, whatever a library adds
        ours = [line for line in ended.told.splitlines() if line.startswith("budgetrec: ")]
        ended = replace(ended, told="\n".join(ours))
    return _refused(scene, job, identity, ended)


def _limiter(kind: int, value: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(kind, (value, value))


def run_pair(scene: Scene, identity: str) -> Trial:
    """Run a job twice at once in one folder: each is done or refused, and the result is what it should be."""
    chance, job = seeded(identity), JOBS[identity.split("/")[1]]
    known = scene.undisturbed(job)
    scene.reset(job.start)
    outputs = [scene.output, scene.output.with_name("told-second.txt")]
    first = forked(job.command(scene.here), outputs[0])
    time.sleep(chance.random() * 0.7 * known.seconds)
    second = forked(job.command(scene.here), outputs[1])
    both = [wait(pid, output) for pid, output in zip((first, second), outputs, strict=True)]
    notes = {"refused": sum(ended.code == 2 for ended in both)}
    for ended in both:
        fault = ended.fault()
        if fault is not None:
            return Trial(identity, 1, [(str(fault[0]), fault[1], identity)], notes)
    if not any(ended.code == 0 for ended in both):
        told = " ".join(ended.told for ended in both)
        return Trial(
            identity, 1, [(str(Fault.LOST), f"neither of the two was done: {told}", identity)], notes
        )
    return Trial(identity, 1, _judged(scene, job, identity, 1, recovery=[]).faults, notes)


def _refused(scene: Scene, job: Job, identity: str, ended: Ended) -> Trial:
    """Judge a job that ended by itself: done, or refused with nothing half-written left."""
    fault = ended.fault()
    if fault is not None:
        return Trial(identity, 1, [(str(fault[0]), fault[1], identity)])
    left = scene.half_written() if ended.code == 0 else scene.unasked(job)
    if left:
        return Trial(identity, 1, [(str(Fault.LEFT), left[0], identity)])
    recovery = [] if ended.code == 0 else None
    trial = _judged(scene, job, identity, 1, recovery=recovery)
    return Trial(identity, 1, trial.faults, {"refused": int(ended.code == 2)})


def _judged(scene: Scene, job: Job, identity: str, tried: int, *, recovery: Commands | None = None) -> Trial:
    found = scene.judge(job, recovery=recovery)
    return Trial(identity, tried, [] if found is None else [(str(found[0]), found[1], identity)])
